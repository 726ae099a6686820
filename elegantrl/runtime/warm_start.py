"""The networks of an earlier run with which a run with other settings starts."""

from __future__ import annotations

from pathlib import Path

from ..config.run import RunConfig
from ..errors import CheckpointError, ConfigError
from ..store.commits import Store
from ..types import State


def load_networks(config: RunConfig, folder: Path, resume: bool) -> State | None:
    """The agent's part of the newest commit in ``train.init_from``; None if this run has a commit of its own."""
    if config.train.init_from is None or (resume and any((folder / "commits").glob("c-*"))):
        return None
    earlier = Path(config.train.init_from)
    if not (earlier / "commits").is_dir():
        raise ConfigError(f"train.init_from={config.train.init_from!r} is no run folder with a commit; check the path")
    commit = Store(earlier).latest_valid()
    if commit is None:
        raise CheckpointError(f"train.init_from={config.train.init_from!r} holds no usable commit")
    state: State = commit.load("learner")["agent"]
    return state
