"""The Hamiltonian term (H-term): the K-step energy of a policy on the best windows of its recent trajectories.

Energy of one window of K steps, with excess log-probabilities e_j and rewards r_k scaled to [0, 1]:

    H = - sum_k gamma_h^k * clamp(e_1 + ... + e_k) * r_k

Added to a policy's loss with weight lambda it raises the probability of action sequences with high rewards. An excess
is a log-probability plus the policy's entropy, which, unlike a density, does not depend on the units of actions. The
clamp removes the gradient for sequences that are likely enough already and for those that have become very unlikely.
Axes: L windows, K steps of a window, O obs, A action.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import tree
from ..config.fields import setting, tunable
from ..data.trajectories import TrajectoryStore
from ..nets.policies import Policy
from ..types import EnvSpec, Rollout, Windows

MINIMUM, MAXIMUM = -16.0, 2.0


@dataclass(frozen=True, kw_only=True)  # no slots: a config inherits from this class and from the settings of its family
class HTermConfig:
    """Settings of the Hamiltonian term."""

    h_term: bool = False
    """Add the K-step energy of the best recent windows to the policy's loss."""
    h_lambda: float = tunable(2**-3, 2**-10, 1.0, "log", ge=0.0, only_with={"h_term": True})
    """Weight of that energy."""
    h_length: int = setting(4, ge=1, only_with={"h_term": True})
    """Steps of a window (K)."""
    h_windows: int = setting(64, ge=1, only_with={"h_term": True})
    """Number of best windows that are used (L)."""
    h_gamma: float = tunable(0.8, 0.5, 0.99, gt=0.0, le=1.0, only_with={"h_term": True})
    """Discount within a window."""
    h_store: int = setting(32_768, ge=1, only_with={"h_term": True})
    """Newest steps, over all environments, in which the best windows are searched."""


class HTerm(nn.Module):
    """Holds windows as buffers, so that a loss stays a function of (parameters, buffers, batch)."""

    action: Tensor
    weight: Tensor

    def __init__(self, config: HTermConfig, spec: EnvSpec, device: torch.device):
        super().__init__()
        shape = (config.h_windows, config.h_length)
        self.obs_leaves, leaves = spec.obs, tree.leaves(spec.obs)
        self.obs_buffers = [f"obs{i or ''}" for i in range(len(leaves))]  # their names; buffers are single tensors
        for name, leaf in zip(self.obs_buffers, leaves, strict=True):
            self.register_buffer(name, leaf.zeros(*shape, device=device))
        self.register_buffer("action", spec.action_leaf.zeros(*shape, device=device))
        self.register_buffer("weight", torch.zeros(shape, device=device))  # until there are windows, no energy
        self.trajectories = TrajectoryStore(config.h_store, spec, device)

    def see(self, rollout: Rollout, gamma: Tensor) -> None:
        """Store new steps and select the best windows of all stored steps."""
        self.trajectories.add(rollout)
        num_windows, length = self.weight.shape
        windows = self.trajectories.top_windows(num_windows, length, gamma)
        if windows is not None:
            self.load(windows)

    def load(self, windows: Windows) -> None:
        for name, leaf in zip(self.obs_buffers, tree.leaves(windows.obs), strict=True):
            getattr(self, name).copy_(leaf)
        self.action.copy_(windows.action)
        self.weight.copy_(windows.weight)

    def forward(self, policy: Policy) -> Tensor:
        """Mean energy of the windows under the present policy."""
        buffers = iter([getattr(self, name) for name in self.obs_buffers])
        obs = tree.map_leaves(lambda _: next(buffers), self.obs_leaves)
        return energy(policy.logp_above_entropy(obs, self.action), self.weight)


def energy(excess_LK: Tensor, weight_LK: Tensor) -> Tensor:
    """Mean over windows of the formula above."""
    return -(excess_LK.cumsum(-1).clamp(MINIMUM, MAXIMUM) * weight_LK).sum(-1).mean()
