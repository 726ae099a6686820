"""Which agents have a faster way to their gradients than autograd."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..agents.base import Agent
from ..agents.gradients import Gradients
from .on_policy import OnPolicyByHand
from .sac import SACByHand

log = logging.getLogger(__name__)
TOLERANCE = 1e-3


def gradients_of(agent: Agent, helped: bool = False) -> Gradients:
    """The fastest known way to the gradients of an agent; if ``helped``, with a process on a second core."""
    fast: OnPolicyByHand | SACByHand
    if OnPolicyByHand.suits(agent):
        fast = OnPolicyByHand(agent)  # type: ignore[arg-type]
    elif SACByHand.suits(agent):
        fast = SACByHand(agent, helped)  # type: ignore[arg-type]
    else:
        return Gradients()
    if agrees(agent, fast):
        return fast
    log.warning("the losses of %s are not those known by hand: autograd is used", type(agent).__name__)
    fast.close()
    return Gradients()


def agrees(agent: Agent, fast: OnPolicyByHand | SACByHand) -> bool:
    """Whether made-up rows have the same gradients both ways: a loss that was edited counts as it stands."""
    before = agent.generator.get_state()
    b: Any = fast.trial_batch(agent, torch.Generator().manual_seed(0))
    args = (b, *fast.trial_noise(agent, b))
    agreed = True
    for name, step in fast.known(agent):
        grad = fast(agent, name, step, *args)[0].clone()
        expected = Gradients.__call__(fast, agent, name, step, *args)[0]
        norm = torch.linalg.vector_norm
        agreed = agreed and bool(norm(grad - expected) <= TOLERANCE * norm(expected) + 1e-6)
    agent.generator.set_state(before)
    return agreed
