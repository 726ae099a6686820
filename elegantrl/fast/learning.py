"""Selects how the gradients of an agent are computed, and checks that they agree with autograd's."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from torch import Tensor

from ..agents.base import Agent
from ..agents.gradients import Gradients
from ..errors import ConfigError
from ..types import Metrics
from .compiled import Compiled
from .on_policy import OnPolicyByHand
from .recurrent import unroll_by_hand
from .sac import SACByHand
from .wide_layers import ByOneDNN

log = logging.getLogger(__name__)

Way = Literal["auto", "autograd", "compiled"]
ByHand = OnPolicyByHand | SACByHand
TOLERANCE = 1e-3
"""Maximum relative difference between two gradients of the same loss; rounding gives 1e-6."""


def gradients_of(agent: Agent, way: Way = "auto", helper: bool = False) -> Gradients:
    """The object that differentiates the hot functions of ``agent``; its ``description`` is for the log of a run.

    ``auto`` uses gradients derived by hand if they exist and agree with autograd's; ``helper`` starts a process on a
    second core that computes half of them where that is possible.
    """
    if way == "autograd":
        return Gradients()
    if way == "compiled":
        return Compiled()
    if way != "auto":
        raise ConfigError(f"train.gradients={way!r} is unknown; choose auto, autograd or compiled")
    name = type(agent).__name__
    if unroll_by_hand(agent):
        return Gradients("autograd (memory by hand)")
    by_hand = derived_by_hand(agent, helper)
    if by_hand is None:
        return autograd_for(agent, f"none derived by hand for this {name}")
    if not agrees(agent, by_hand):
        by_hand.close()
        log.warning("the losses of %s are not those known by hand: autograd is used", name)
        return autograd_for(agent, f"the losses of {name} are not those known by hand")
    by_hand.description = "by hand (checked against autograd)"
    return by_hand


def autograd_for(agent: Agent, why: str) -> Gradients:
    """Autograd by the faster kernels of this machine."""
    if ByOneDNN.suits(agent):
        return ByOneDNN(agent, f"autograd ({why}), products by oneDNN")
    return Gradients(f"autograd ({why})")


def derived_by_hand(agent: Agent, helper: bool) -> ByHand | None:
    """Gradients derived by hand, if there are any for the losses and networks of ``agent``."""
    if OnPolicyByHand.suits(agent):
        return OnPolicyByHand(agent)  # type: ignore[arg-type]
    if SACByHand.suits(agent):
        return SACByHand(agent, helper)  # type: ignore[arg-type]
    return None


def agrees(agent: Agent, by_hand: ByHand) -> bool:
    """Whether gradients and metrics equal autograd's on random rows: they do not if a loss was edited.

    The rows are the same for every run, so that a resumed run makes the same choice, and nothing is drawn from the
    streams of the run.
    """
    args = by_hand.check_args(agent, torch.Generator().manual_seed(0))
    for name, step in by_hand.losses(agent):
        found, found_metrics = by_hand(agent, name, step, *args)
        expected, metrics = Gradients.__call__(by_hand, agent, name, step, *args)
        if not (is_close(found, expected) and same_metrics(found_metrics(), metrics())):
            return False
    return True


def is_close(found: Tensor, expected: Tensor) -> bool:
    norm = torch.linalg.vector_norm
    return found.shape == expected.shape and bool(norm(found - expected) <= TOLERANCE * norm(expected) + 1e-6)


def same_metrics(found: Metrics, expected: Metrics) -> bool:
    return found.keys() == expected.keys() and all(is_close(found[name], expected[name]) for name in expected)
