"""A run from start to end: resolve the config, build the roles, train, leave a complete run folder."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import math
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from .. import __version__
from ..config import SECTIONS, RunConfig, build_section, check_names
from ..defaults import Recipe, find_recipe
from ..envs import make_env
from ..envs.vec_env import VecEnv
from ..errors import CheckpointError, ConfigError
from ..execute.base import Executor
from ..execute.inline import InlineExecutor
from ..nets.policies import FlatPolicy, Policy, PolicySpec
from ..registry import find_agent
from ..types import EnvSpec, Weights
from .evaluator import Evaluator, Score
from .learner import Learner
from .metrics import RunLog
from .store import Commit, Store, load_weights, save_actor_pth, save_weights, write_atomic
from .supervisor import Display, Progress, Roles, Supervisor
from .worker import Worker

BEST_FILE = "best.safetensors"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a finished run left behind."""

    run_dir: Path
    summary: dict[str, Any]

    @property
    def best_return(self) -> float:
        """Mean return of the best evaluation; NaN if the run stopped before the first."""
        best = self.summary["best_return"]
        return math.nan if best is None else float(best)

    def load_policy(self) -> TrainedPolicy:
        return TrainedPolicy.load(self.run_dir)


# ---- from a few words to a complete config


def resolve_config(
    agent: str, env: str, overrides: dict[str, dict[str, Any]] | None = None
) -> tuple[RunConfig, Recipe]:
    """The agent's own defaults, then the tuned settings for this environment, then ``overrides`` by section."""
    entry, recipe = find_agent(agent), find_recipe(agent.lower(), env)
    overrides = overrides or {}
    check_names(overrides, ["agent", *SECTIONS], "")
    agent_data = {**recipe.sections.get("agent", {}), **overrides.get("agent", {})}
    agent_config = build_section(entry.config, {**entry.preset, **agent_data})
    sections: dict[str, Any] = {
        name: build_section(
            kind,
            ({"id": env} if name == "env" else {}) | recipe.sections.get(name, {}) | overrides.get(name, {}),
        )
        for name, kind in SECTIONS.items()
    }
    return RunConfig(agent_name=entry.name, agent=agent_config, **sections), recipe


SHORT = {"num_envs": "env", **{f.name: "train" for f in fields(SECTIONS["train"])}}
"""Settings that Python callers and the command line give without their section."""


def split_overrides(agent: str, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat keyword settings by section; what is no run setting must be one of the agent."""
    agent_names = [f.name for f in fields(find_agent(agent).config)]
    overrides: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in SECTIONS:
            overrides.setdefault(name, {}).update(value)
        else:
            check_names({name: value}, [*SHORT, *agent_names, *SECTIONS], "")
            overrides.setdefault(SHORT.get(name, "agent"), {})[name] = value
    return overrides


def train(
    agent: str | RunConfig,
    env: Any = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    display: Display | None = None,
    **settings: Any,
) -> RunResult:
    """Train an agent; ``elegantrl.train("ppo", "CartPole-v1", num_envs=8, seed=1)``.

    ``agent`` is a name or a whole ``RunConfig``. ``env`` is an id, a class, a callable or an instance. Further settings
    are those of the run (``seed``, ``max_steps``, ``target_return``, ``num_envs``, ...), of the agent (``lr``,
    ``gamma``, ...) or whole sections (``eval={"episodes": 10}``).
    """
    if isinstance(agent, RunConfig):
        if settings:
            raise ConfigError(f"with a RunConfig there are no further settings, but got {', '.join(settings)}")
        config, source = agent, env if env is not None else agent.env.id
    else:
        if env is None:
            raise ConfigError("train needs an environment: an id, a class, a callable or an instance")
        lanes = own_lanes(env)
        if lanes is not None:
            settings = {"num_envs": lanes, **settings}
        config, _ = resolve_config(agent, env_name(env), split_overrides(agent, settings))
        source = env
    return run_training(config, source, run_dir, resume, display or Silent())


def env_name(env: Any) -> str:
    """What to call an environment in the config: its id, or the address of its class or function."""
    if isinstance(env, str):
        return env
    gym_id = getattr(getattr(env, "spec", None), "id", None)
    if gym_id is not None:
        return str(gym_id)
    thing = env if hasattr(env, "__qualname__") else type(env)
    return f"{thing.__module__}:{thing.__qualname__}"


class Silent:
    """Shows nothing."""

    def progress(self, *_: Any) -> None: ...

    def evaluation(self, *_: Any) -> None: ...

    def message(self, text: str) -> None: ...


# ---- the run itself


def run_training(
    config: RunConfig, source: Any, run_dir: str | Path | None, resume: bool, display: Display
) -> RunResult:
    """Open or create the run folder, train, and leave it complete; what is refused leaves nothing behind."""
    device = pick_device(config.train.device)
    folder = choose_folder(config, run_dir, resume)
    if resume:
        check_same_config(folder, config)
    torch.set_num_threads(config.train.num_threads)
    keep_freed_memory()
    with contextlib.ExitStack() as cleanup:
        executor = InlineExecutor()
        cleanup.callback(executor.close)
        # Everything that may be refused is built before the first byte is written.
        roles, spec = build_roles(config, source, device, executor)
        config = with_target(config, spec)
        store = Store(folder, config.checkpoint.keep)
        store.lock()
        cleanup.callback(store.close)
        commit = find_commit(store, config) if resume else None
        log = RunLog(folder, resume_step=commit.step if commit else 0)
        cleanup.callback(log.close)
        info = commit_info(config, roles.workers[0].call("exactness").result())
        keep_best = partial(save_best, folder, roles.learner.call("policy_spec").result())
        supervisor = Supervisor(config, executor, roles, store, log, display, info, keep_best)
        if commit is not None:
            restore(supervisor, commit, store, display)
        write_atomic(folder / "config.yaml", config.to_yaml().encode())
        with stop_on_signals(supervisor.request_stop):
            reason = supervisor.run()
        return finish(config, folder, supervisor, reason)


def restore(supervisor: Supervisor, commit: Commit, store: Store, display: Display) -> None:
    """Continue from ``commit``; say what was skipped on the way to it and how exact the continuation is."""
    for reason in store.skipped:
        display.message(f"skipped damaged commit {reason}")
    try:
        supervisor.restore({part: commit.load(part) for part in commit.parts})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        text = " ".join(str(error).split())
        raise CheckpointError(f"{commit.id} does not fit this agent and environment: {text}") from error
    display.message(f"resumed {commit.id} at step {commit.step:,}")
    saved, here = commit.manifest["info"].get("versions", {}), versions()
    for name in here:
        if saved.get(name) != here[name]:
            display.message(
                f"the resume is statistically, not bit, exact: {name} was {saved.get(name)}, is {here[name]}"
            )


def build_roles(config: RunConfig, source: Any, device: torch.device, executor: Executor) -> tuple[Roles, EnvSpec]:
    """Worker, learner and evaluator; the environments of training and evaluation are separate objects."""
    seed = config.train.seed
    env = make_env(source, config.env.num_envs, device=device, **config.env.kwargs)
    learner = executor.spawn(lambda: Learner(config.agent_name, config.agent, env.spec, device, seed))
    policy_spec = learner.call("policy_spec").result()
    worker = executor.spawn(lambda: Worker(env, policy_spec, seed, owns_env=not is_instance(source)))
    eval_env = evaluation_env(config, source, device)
    evaluator = executor.spawn(lambda: Evaluator(eval_env, policy_spec, config.eval.max_episode_steps))
    return Roles([worker], learner, evaluator), env.spec


def evaluation_env(config: RunConfig, source: Any, device: torch.device) -> VecEnv:
    """A lane per evaluation episode, sharing nothing with training."""
    if own_lanes(source) is not None:
        return make_env(_copy_of_instance(source), device=device)
    if is_instance(source):
        source = _copy_of_instance(source)
    return make_env(source, config.eval.episodes, device=device, **config.env.kwargs)


def is_instance(source: Any) -> bool:
    """Whether the caller made the environment, who then also closes it."""
    return not isinstance(source, str | type) and hasattr(source, "step")


def own_lanes(source: Any) -> int | None:
    """The number of lanes of an instance that comes with them."""
    if isinstance(source, VecEnv):
        return source.spec.num_envs
    return source.num_envs if isinstance(source, gymnasium.vector.VectorEnv) else None


def with_target(config: RunConfig, spec: EnvSpec) -> RunConfig:
    """Where nobody names a target return, the environment's own threshold is the target."""
    if config.train.target_return is not None or spec.target_return is None:
        return config
    return replace(config, train=replace(config.train, target_return=spec.target_return))


def choose_folder(config: RunConfig, run_dir: str | Path | None, resume: bool) -> Path:
    """The run folder: as asked, or a fresh name under ``runs/``. Nothing is ever deleted."""
    if run_dir is not None:
        folder = Path(run_dir)
        if not resume and (folder / "config.yaml").exists():
            raise ConfigError(f"{folder} already holds a run; add --resume to continue it or choose another --run-dir")
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file, not a folder; choose another --run-dir")
        return folder
    if resume:
        raise ConfigError("there is nothing to resume without a folder; name it with --run-dir")
    name = f"{config.agent_name}_{config.env.id.replace('/', '-').replace(':', '-')}_seed{config.train.seed}"
    taken = 1
    while (folder := Path("runs") / (name if taken == 1 else f"{name}_{taken}")).exists():
        taken += 1
    return folder


def check_same_config(folder: Path, config: RunConfig) -> None:
    """Refuse to continue a run that was made with other settings."""
    if not (folder / "config.yaml").exists():
        raise CheckpointError(f"{folder} holds no run to resume; check --run-dir or drop --resume")
    found = load_config(folder)
    if found.hash() != config.hash():
        raise ConfigError(
            f"{folder} belongs to another config: {first_difference(found.identity(), config.identity())};"
            f" use the same settings or another --run-dir"
        )


def find_commit(store: Store, config: RunConfig) -> Commit:
    """The newest commit of a run folder that is whole, readable and of this config."""

    def check(commit: Commit) -> None:
        for part in commit.parts:
            commit.load(part)
        found = commit.manifest["info"].get("config_hash")
        if found != config.hash():
            raise CheckpointError(f"it belongs to another config ({found} instead of {config.hash()})")

    commit = store.latest_valid(check)
    if commit is None:
        raise CheckpointError(f"{store.run_dir} holds no commit to resume; start anew in another --run-dir")
    return commit


def load_config(folder: Path) -> RunConfig:
    """The config a run folder was made with."""
    try:
        return RunConfig.from_yaml((folder / "config.yaml").read_text())
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise CheckpointError(f"{folder}/config.yaml cannot be read ({text}); is {folder} a run folder?") from None


def first_difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """``agent.lr is 0.001 there and 0.003 here`` for what differs, agent and environment before their settings."""
    there, here = (
        {f"{section}.{name}": value for section, values in config.items() for name, value in values.items()}
        for config in (found, wanted)
    )
    for name in sorted({**there, **here}, key=lambda name: name not in ("agent.name", "env.id")):
        if there.get(name) != here.get(name):
            return f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
    return "no difference"


def pick_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device={name!r} is no device; use cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"train.device={name!r} is not supported; use cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"train.device={name!r} needs a CUDA device and there is none; use --device cpu"
            if torch.cuda.device_count() == 0
            else f"train.device={name!r} is beyond the {torch.cuda.device_count()} CUDA devices here; use a lower one"
        )
    return device


def commit_info(config: RunConfig, exactness: str) -> dict[str, Any]:
    return {"config_hash": config.hash(), "exactness": exactness, "versions": versions()}


def versions() -> dict[str, str]:
    return {
        "elegantrl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }


def finish(config: RunConfig, folder: Path, supervisor: Supervisor, reason: str) -> RunResult:
    """Write the best policy under its documented names, the summary and the picture."""
    state = supervisor.state
    supervisor.keep_best(supervisor.best_flat, state)
    summary = {
        "agent": config.agent_name,
        "env": config.env.id,
        "seed": config.train.seed,
        "num_envs": config.env.num_envs,
        "env_steps": state.env_steps,
        "updates": supervisor.ask(supervisor.roles.learner, "num_updates"),
        "episodes": state.episodes,
        "wall_seconds": round(state.wall_seconds, 3),
        "steps_per_second": round(state.env_steps / max(state.wall_seconds, 1e-9), 1),
        "best_return": _json_number(state.best_mean),
        "best_step": state.best_step,
        "final_return": _json_number(state.final_mean),
        "target_return": _json_number(config.train.target_return),
        "stop_reason": reason,
        "config_hash": config.hash(),
        "versions": versions(),
    }
    write_atomic(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    from .plot import plot_run  # matplotlib is slow to import and only needed here

    plot_run(folder)
    return RunResult(folder, summary)


def _json_number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def save_best(folder: Path, spec: PolicySpec, flat: torch.Tensor, state: Progress) -> None:
    """The best policy so far under its two names; a run that dies later still leaves it."""
    about = {"env_steps": str(state.best_step), "mean": str(state.best_mean)}
    policy = FlatPolicy(spec, torch.device("cpu")).load(flat.cpu())
    save_weights(folder / BEST_FILE, policy.state_dict(), {"policy": json.dumps(asdict(spec)), **about})
    save_actor_pth(folder / "actor.pth", policy.state_dict())


# ---- using what was trained


class TrainedPolicy:
    """The best policy of a run, ready to act and to be judged."""

    def __init__(self, policy: Policy, spec: PolicySpec, config: RunConfig):
        self.policy, self.spec, self.config = policy, spec, config

    @classmethod
    def load(cls, run_dir: str | Path) -> TrainedPolicy:
        """From a run folder; nothing is unpickled."""
        folder = Path(run_dir)
        if not folder.is_dir():
            raise CheckpointError(f"there is no run folder {folder}; check the path")
        config = load_config(folder)
        if not (folder / BEST_FILE).exists():
            raise CheckpointError(f"{folder} holds no trained policy yet; let the run finish or resume it")
        tensors, about = load_weights(folder / BEST_FILE)
        try:
            spec = PolicySpec(**json.loads(about["policy"]))
            policy = spec.build()
            policy.load_state_dict(tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            text = " ".join(str(error).split())
            raise CheckpointError(f"{folder / BEST_FILE} does not hold a policy of this version: {text}") from None
        return cls(policy.requires_grad_(False), spec, config)

    @torch.no_grad()
    def act(self, obs: Any) -> np.ndarray:
        """The best known action for one observation or a batch of them; continuous ones in [-1, 1]."""
        x = torch.as_tensor(np.asarray(obs, dtype=np.float32))
        batch = x.reshape(-1, self.spec.kwargs["obs_dim"])
        action, _ = self.policy.act(batch, False, None)
        return np.asarray(action.squeeze(0) if batch.shape[0] == 1 and x.dim() < 2 else action)

    def evaluate(self, episodes: int = 20, seed: int = 0, env: Any = None) -> Score:
        """Returns of ``episodes`` episodes without exploration."""
        source = self.config.env.id if env is None else env
        vec_env = make_env(source, episodes, device="cpu", **self.config.env.kwargs)
        evaluator = Evaluator(vec_env, self.spec, self.config.eval.max_episode_steps)
        try:
            return evaluator.score(Weights(0, self.policy.to_flat()), seed)
        finally:
            evaluator.close()


# ---- the process


@contextlib.contextmanager
def stop_on_signals(request: Callable[[str], None]) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or hang-up into a stop after a commit; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may install handlers; whoever runs this elsewhere keeps their own
        return
    names = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
    if hasattr(signal, "SIGHUP"):
        names[signal.SIGHUP] = "terminated"
    old = {number: signal.getsignal(number) for number in names}
    old = {number: handler for number, handler in old.items() if handler is not signal.SIG_IGN}  # nohup stays in force

    def handle(number: int, _: Any) -> None:
        request(names[signal.Signals(number)])
        for other, handler in old.items():
            signal.signal(other, handler if callable(handler) else signal.SIG_DFL)

    for number in old:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def keep_freed_memory() -> None:
    """Let glibc keep freed tensors instead of returning their pages to the system at every free: +10 to 20 % speed."""
    if sys.platform != "linux":
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, 1 << 30)
    except (OSError, AttributeError):  # another libc: nothing to tune
        return


def _copy_of_instance(env: Any) -> Any:
    """A second environment like this one, for evaluation."""
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise ConfigError(
            f"evaluation needs environments of its own and {type(env).__name__} cannot be copied ({error});"
            f" pass a class or a function that makes it"
        ) from None
