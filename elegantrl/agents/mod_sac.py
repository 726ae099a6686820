"""SAC whose actor is updated less often while the critic loss is large: the "reliable lambda" rule of two time scales.

A running average c of the critic loss gives the reliability lambda = exp(-c^2). The actor is updated while the ratio of
actor to critic updates is below 1 / (2 - lambda): with every second critic update when the loss is large, with every
one when it is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..config.fields import Hidden, unused
from ..types import EnvSpec, Metrics
from .sac import AgentSAC, SACConfig

KEEP = 0.995
READ_EVERY = 16  # updates between two host reads of an average that changes over hundreds of updates


@dataclass(frozen=True, kw_only=True, slots=True)
class ModSACConfig(SACConfig):
    """Settings of ModSAC."""

    actor_interval: Hidden[int] = unused(1)


class AgentModSAC(AgentSAC):
    loss_average: torch.Tensor
    actor_updates: torch.Tensor
    allowed_ratio: torch.Tensor

    def __init__(self, spec: EnvSpec, config: ModSACConfig, device: torch.device, seed: int):
        super().__init__(spec, config, device, seed)
        # Starts at a reliability of one half. All three are buffers, so that a commit holds them.
        self.register_buffer("loss_average", torch.tensor(math.sqrt(math.log(2.0)), device=device))
        self.register_buffer("actor_updates", torch.zeros((), dtype=torch.int64))
        self.register_buffer("allowed_ratio", torch.tensor(1 / 1.5))

    def actor_is_due(self, metrics: Metrics) -> bool:
        # The mean square error per critic.
        error = self.averaging.average(metrics["loss/critic"] * (2 / self.config.num_critics))
        self.loss_average.lerp_(error, 1 - KEEP)
        if self.num_updates % READ_EVERY == 0:
            self.allowed_ratio.copy_(1 / (2 - (-self.loss_average.square()).exp()))
        due = bool(self.actor_updates < self.allowed_ratio * (self.num_updates + 1))  # both are on the host
        self.actor_updates += due
        return due
