"""``elegantrl.train``: the entry point of every run, for Python callers and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..agents.base import Agent
from ..config.resolve import Overrides, check_schedule, env_name, resolve_config, split_overrides
from ..config.run import RunConfig
from ..config.sections import ExecuteConfig
from ..errors import ConfigError
from ..imports import is_import_path, is_only_here
from ..registry import AgentEntry, check_importable, find_agent
from ..store.untrusted import CONFIG_FILE, load_config
from .callback import Callbacks, make_callbacks
from .changes import with_changes
from .display import Stdout, show_summary, shown_run
from .layout import with_layout
from .progress import Display, Silent
from .run import RunResult, own_lanes, run_training


def train(
    agent: str | type[Agent] | RunConfig,
    env: Any = None,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    eval_env: Any = None,
    callback: Callbacks = None,
    allow: Mapping[str, Any] | None = None,
    verbose: bool = True,
    display: Display | None = None,
    **settings: Any,
) -> RunResult:
    """Train an agent; ``elegantrl.train("ppo", "CartPole-v1", num_envs=8, seed=1)``.

    ``agent`` is a registered name, an import path ``module:Class``, a class, or a whole ``RunConfig``. ``env`` is an
    id, a class, a callable or an instance; ``eval_env`` likewise, for evaluations in another environment.

    Further settings are those of the run (``seed``, ``max_steps``, ``target_return``, ``num_envs``, ``num_workers``,
    ``env_kwargs``, ``init_from``, ...), of the agent (``lr``, ``gamma``, ...) or whole sections
    (``eval={"episodes": 10}``). The layout is selected as on the command line, unless ``executor`` or another setting
    of the layout is given.

    Progress is printed unless ``verbose=False``; a ``display`` of your own replaces it. ``callback`` is one or several
    ``Callback``, which are called at the events of the run and may stop it; a function is called with an ``Event``
    after each log line and each evaluation. ``allow={"lr": 1e-4}`` changes settings of the agent at a resume.
    """
    if isinstance(agent, RunConfig):
        if settings:
            raise ConfigError(f"with a RunConfig there are no further settings, but got {', '.join(settings)}")
        overrides: Overrides = {}
    else:
        overrides = split_overrides(agent, settings)
    plan = prepare(agent, env, overrides, eval_env, run_dir if resume else None, allow)
    return plan.run(run_dir, resume, verbose, display, callback)


class Plan(NamedTuple):
    """A run that can start: its complete config, its environments, and the source of its settings."""

    config: RunConfig
    entry: AgentEntry
    source: Any
    eval_source: Any
    notes: str
    allow: tuple[str, ...] = ()
    """Settings of the agent that a resumed run may change."""

    def run(
        self,
        run_dir: str | Path | None,
        resume: bool,
        verbose: bool = True,
        display: Display | None = None,
        callback: Callbacks = None,
    ) -> RunResult:
        """Train; progress and summary go to ``display``, or to standard output if ``verbose``."""
        start = partial(run_training, self.config, self.source, run_dir, resume)
        more: dict[str, Any] = {"entry": self.entry, "eval_source": self.eval_source, "allow": self.allow}
        more["callbacks"] = make_callbacks(callback)
        if display is not None or not verbose:
            return start(display or Silent(), **more)
        with shown_run(self.config, self.notes) as shown:
            result = start(shown, **more)
        show_summary(Stdout(), result.run_dir, result.summary)
        return result


def prepare(
    agent: str | type[Agent] | RunConfig,
    env: Any,
    overrides: Overrides,
    eval_env: Any = None,
    resumed: str | Path | None = None,
    allow: Mapping[str, Any] | None = None,
) -> Plan:
    """Complete the config of a run: tuned settings, then the layout, or that of the run folder ``resumed``."""
    if isinstance(agent, RunConfig):
        if eval_env is not None:
            agent = replace(agent, eval=replace(agent.eval, env_id=env_name(eval_env)))
        config, entry, notes = agent, find_agent(agent.agent_name), "settings of a config"
        source = agent.env.id if env is None else env
    else:
        if env is None:
            raise ConfigError("train needs an environment: an id, a class, a callable or an instance")
        if eval_env is not None:
            overrides = with_defaults(overrides, "eval", {"env_id": env_name(eval_env)})
        if (lanes := own_lanes(env)) is not None:
            overrides = with_defaults(overrides, "env", {"num_envs": lanes})
        overrides = {**overrides, "agent": {**overrides.get("agent", {}), **(allow or {})}}
        entry, source = find_agent(agent), env
        config, recipe = resolve_config(agent, env_name(env), overrides)
        notes = recipe.name
    if allow:
        config = with_changes(config, allow, resumed is not None)
    check_schedule(config)
    found = None if resumed is None else layout_of(Path(resumed), config)
    config, why = with_layout(config, source, found)
    if config.execute.num_learners:
        check_importable(entry)
    check_networks(config)
    eval_source = config.eval.env_id if eval_env is None else eval_env
    return Plan(config, entry, source, eval_source, "; ".join(filter(None, [notes, why])), tuple(allow or ()))


def layout_of(folder: Path, config: RunConfig) -> ExecuteConfig | None:
    """The layout of the run in ``folder``, None if there is none; refuses code and clusters that only it names."""
    if not (folder / CONFIG_FILE).exists():
        return None
    found = load_config(folder, named=(config.agent_name,)).execute
    if is_import_path(found.executor) and found.executor != config.execute.executor:
        raise ConfigError(
            f"{folder} was run by {found.executor}, whose import runs code; add --executor {found.executor} if you"
            f" trust it, or name another executor"
        )
    if found.address is not None and config.execute.executor == "auto":
        raise ConfigError(
            f"{folder} was run on the Ray cluster {found.address}, whose nodes may run code here; add"
            f" --executor ray --address {found.address} if you trust it, or name another executor"
        )
    return found


def check_networks(config: RunConfig) -> None:
    """Refuse to run processes with an encoder or a network that only this process knows."""
    for path in filter(is_only_here, config.agent.net().imports()):
        if config.execute.executor != "inline":
            raise ConfigError(
                f"{path} is defined in a notebook or an interactive session, where other processes cannot import it;"
                f" move it to a module, or use executor='inline'"
            )


def with_defaults(overrides: Overrides, section: str, values: dict[str, Any]) -> Overrides:
    """``overrides`` with values for settings of a section that the caller has not given."""
    return {**overrides, section: {**values, **overrides.get(section, {})}}
