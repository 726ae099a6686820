"""``elegantrl.train``: the entrance for Python callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..config.resolve import env_name, resolve_config, split_overrides
from ..config.run import RunConfig
from ..errors import ConfigError
from .progress import Display, Silent
from .run import RunResult, own_lanes, run_training


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
