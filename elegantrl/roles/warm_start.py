"""A new agent that starts with the networks of an earlier run."""

from __future__ import annotations

from ..agents.base import Agent
from ..errors import ConfigError
from ..types import State

OWN_BUFFERS = "hypers."
"""Parts of an agent's state that come from its settings, not from learning."""


def load_networks(agent: Agent, state: State) -> None:
    """Copy parameters and normalisers from the training state of another agent; optimisers and counters stay new."""
    own, found = (
        {name: tensor for name, tensor in modules.items() if not name.startswith(OWN_BUFFERS)}
        for modules in (agent.state_dict(), state["modules"])
    )
    for name in sorted(own.keys() ^ found.keys()):
        where = "the earlier run" if name in own else "this run"
        raise ConfigError(
            f"train.init_from: {where} has no {name}; use the agent and the network settings of the earlier run"
        )
    for name, tensor in own.items():
        if tensor.shape != found[name].shape:
            raise ConfigError(
                f"train.init_from: {name} has shape {tuple(found[name].shape)} in the earlier run and"
                f" {tuple(tensor.shape)} in this one; use the same agent.hidden and the same kind of environment"
            )
    agent.load_state_dict(found, strict=False)
    if agent.obs_stats is not None:
        agent.obs_stats.load_state_dict(state["obs_stats"])
