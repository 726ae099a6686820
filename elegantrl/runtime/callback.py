"""Callbacks: code of the user that a run calls at its events. A callback sees the run and may stop it.

A callback changes no number of a run: it gets no tensor that training uses, and a run has random streams of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ..config.run import RunConfig
from ..errors import CallbackFailed, ConfigError, format_error, innermost_line
from ..imports import find, is_import_path
from ..roles.evaluator import Score
from ..types import Fragment, Metrics
from .progress import Progress
from .reporting import host_floats

Kind = Literal["start", "step", "update", "log", "evaluation", "commit", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a callback gets: the state of the run, and what has just happened."""

    kind: Kind
    run_dir: Path
    config: RunConfig
    """All settings of the run."""
    env_steps: int
    episodes: int
    wall_seconds: float
    train_return: float
    """Mean return of the latest training episodes; NaN before the first."""
    best_return: float
    """Mean return of the best evaluation so far, minus infinity before the first; at the end that of the policy that
    the run returns, on fresh episodes."""
    steps_per_second: float | None = None
    """Speed since the last log line; only of kind ``log``."""
    returns: tuple[float, ...] = ()
    """Returns of the training episodes that have just ended (``step``), or of an evaluation (``evaluation``)."""
    evaluated_step: int | None = None
    """The step of the policy that was evaluated, which a run that trains meanwhile has passed."""
    is_best: bool = False
    """Whether this evaluation is the best so far."""
    win_rate: float | None = None
    """The fraction of the evaluated episodes that were won, of tasks that can be won."""
    commit: Path | None = None
    """The folder of a commit that is now complete; only of kind ``commit``."""
    stop_reason: str | None = None
    """Why the run has ended; only of kind ``end``. It is ``failed`` after an error."""
    tensors: Metrics = field(default_factory=dict, repr=False)
    """The numbers of ``metrics`` on the device of the learner."""

    @property
    def metrics(self) -> dict[str, float]:
        """Losses and other numbers of the newest update; a device sends them when they are read, and not before."""
        return host_floats(self.tensors)


class Callback:
    """The base of callbacks: override what you need.

    A method that returns False stops the run after its current iteration, with a commit. An error in a method stops it
    too, and is raised when the commit is written.
    """

    def on_start(self, event: Event) -> object:
        """Before the first step, also of a run that is resumed."""

    def on_step(self, event: Event) -> object:
        """Environment steps have arrived, and the learner has not seen them yet."""

    def on_update(self, event: Event) -> object:
        """The learner has learned; ``event.metrics`` has its losses."""

    def on_log(self, event: Event) -> object:
        """A log line was written, about twice a second."""

    def on_evaluation(self, event: Event) -> object:
        """A policy was evaluated."""

    def on_commit(self, event: Event) -> object:
        """A commit is complete on the disk."""

    def on_end(self, event: Event) -> object:
        """The run has ended, and all files but the logs are written. What it returns has no effect."""


class FunctionCallback(Callback):
    """A plain function as a callback: it gets the events ``log`` and ``evaluation``."""

    def __init__(self, function: Callable[[Event], object]):
        self.function = function

    def on_log(self, event: Event) -> object:
        return self.function(event)

    def on_evaluation(self, event: Event) -> object:
        return self.function(event)


AnyCallback = Callback | type[Callback] | Callable[[Event], object] | str
"""An object or a class of ``Callback``, a function, or the import path of any of these."""
Callbacks = AnyCallback | Sequence[AnyCallback] | None


def make_callbacks(given: Callbacks) -> list[Callback]:
    """The callbacks that a caller has named, in the same order."""
    if given is None:
        return []
    return [_make(one) for one in (given if isinstance(given, list | tuple) else [given])]


def _make(given: Any) -> Callback:
    if isinstance(given, str):
        if not is_import_path(given):
            raise ConfigError(f"the callback {given!r} is no import path; write package.module:Name")
        return _make(find(given, {}, "callback"))
    if isinstance(given, type) and issubclass(given, Callback):
        try:
            return given()
        except Exception as error:
            raise ConfigError(
                f"the callback {given.__qualname__} cannot be made without arguments ({format_error(error)}); give them"
                f" defaults, or pass an object"
            ) from error
    if isinstance(given, Callback):
        return given
    if isinstance(given, type) or not callable(given):
        raise ConfigError(f"the callback {given!r:.80} is neither an elegantrl.Callback nor a function of an event")
    return FunctionCallback(given)


class Hooks:
    """Calls the callbacks of one run. Methods that a callback does not override cost nothing."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        config: RunConfig,
        run_dir: Path,
        progress: Progress,
        request_stop: Callable[[str], None],
    ):
        self.config, self.run_dir, self.progress, self.request_stop = config, run_dir, progress, request_stop
        self.metrics: Metrics = {}
        self.failure: CallbackFailed | None = None
        self._methods: dict[Kind, list[Callable[[Event], object]]] = {
            kind: [getattr(c, f"on_{kind}") for c in callbacks if _overrides(c, f"on_{kind}")]
            for kind in get_args(Kind)
        }

    def start(self) -> None:
        self._call("start")

    def step(self, fragments: Sequence[Fragment]) -> None:
        if self._methods["step"]:
            self._call("step", returns=tuple(x for f in fragments for x in f.episodes.returns.tolist()))

    def update(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._call("update")

    def log(self, steps_per_second: float) -> None:
        self._call("log", steps_per_second=steps_per_second)

    def evaluation(self, step: int, score: Score, is_best: bool) -> None:
        found: dict[str, Any] = {"evaluated_step": step, "is_best": is_best, "win_rate": score.win_rate}
        best = {"best_return": score.mean} if is_best else {}  # the newest policy is evaluated after the last commit
        self._call("evaluation", returns=tuple(score.returns), **found, **best)

    def commit(self, folder: Path) -> None:
        self._call("commit", commit=folder)

    def end(self, reason: str, best_return: float | None = None) -> None:
        """``best_return`` is that of the policy that the run returns, if it is known."""
        self._call("end", stop_reason=reason, **({} if best_return is None else {"best_return": best_return}))

    def _call(self, kind: Kind, **found: Any) -> None:
        """Call the methods of one kind; after an error only those of the end are called."""
        if not self._methods[kind] or (self.failure is not None and kind != "end"):
            return
        progress = self.progress
        state: dict[str, Any] = {
            "env_steps": progress.env_steps,
            "episodes": progress.episodes,
            "wall_seconds": progress.wall_seconds,
            "train_return": progress.train_return,
            "best_return": progress.best_mean,
            "tensors": self.metrics,
        }
        event = Event(kind=kind, run_dir=self.run_dir, config=self.config, **(state | found))
        for method in self._methods[kind]:
            try:
                if method(event) is False:
                    self.request_stop("callback")
            except Exception as error:
                self._note(error, method, event)

    def _note(self, error: Exception, method: Callable[[Event], object], event: Event) -> None:
        """Stop the run because of the first error of a callback; ``raise_failure`` raises it in the end."""
        if self.failure is not None:
            return
        owner = getattr(method, "__self__", method)
        name = getattr(owner.function, "__name__", "") if isinstance(owner, FunctionCallback) else type(owner).__name__
        advice = "" if event.kind == "end" else "; the run has stopped with a commit: correct it and continue by resume"
        self.failure = CallbackFailed(
            f"the callback {name} failed in on_{event.kind} at step {event.env_steps:,}: {format_error(error)}"
            f" ({innermost_line(error)}){advice}"
        )
        self.failure.__cause__ = error
        self.request_stop("callback_error")

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def _overrides(callback: Callback, name: str) -> bool:
    return getattr(type(callback), name) is not getattr(Callback, name) or name in vars(callback)
