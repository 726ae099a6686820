"""What is to be deployed: a run, several runs as one policy, or a policy that is loaded already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymnasium import spaces

from .. import __version__
from ..envs.space_text import describe_spaces
from ..errors import ConfigError
from ..store.team_units import TeamUnits
from ..store.trained import TrainedPolicy

Runs = TrainedPolicy | str | Path | Sequence[str | Path]


def open_policy(runs: Runs, weights: Sequence[float] | None, allow_import: bool) -> TrainedPolicy:
    """The policy of a run folder, or the weighted average of several."""
    if isinstance(runs, TrainedPolicy):
        return runs
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    if not folders:
        raise ConfigError("RUN is missing; name the folder of a run")
    if len(folders) == 1 and not weights:
        return TrainedPolicy.load(folders[0], allow_import)
    return TrainedPolicy.ensemble(folders, weights or None, allow_import)


def description(trained: TrainedPolicy) -> dict[str, Any]:
    """What a policy is, for people and programs that get it."""
    units = trained.units
    observation: Any
    if isinstance(units, TeamUnits):
        named = [(agent, own.observation_space) for agent, own in units.agents.items()]
        observation = None if named[0][1] is None else spaces.Dict(named)
    else:
        observation = units.observation_space
    members = trained.spec.kwargs.get("members", [])
    return {
        "elegantrl": __version__,
        "agent": f"ensemble of {len(members)} runs" if members else trained.config.agent_name,
        "env": trained.config.env.id,
        "spaces": json.loads(describe_spaces(observation, units.action_space)),
    }
