"""The Hamiltonian term (H-term): the K-step energy of a policy on good windows of its recent trajectories.

Energy of one window of K steps, with excess log-probabilities e_j and weights w_k:

    H = - sum_k gamma_h^k * clamp(e_1 + ... + e_k) * w_k

Its gradient raises the probability of the window's actions. An excess is a log-probability plus the policy's entropy,
which, unlike a density, does not depend on the units of actions. The clamp removes the gradient for sequences that are
likely enough already and for those that have become very unlikely.

Windows are drawn in proportion to their advantage, the return that followed their first step minus what the agent
expects there now, or are those with the highest rewards (``h_select``). While the agent's values explain less than half
of the variance of these returns, advantages are mostly errors of the values, and no window is drawn. The gradient is
added to that of the policy's usual loss, without what is against the running average of that one, and limited by the
length of that average (``HTerm.add``).
Axes: F rows of the store, N lanes, L windows, K steps of a window, P parameters of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import tree
from ..config.fields import setting, tunable
from ..data.trajectories import TrajectoryStore
from ..tree import Tree
from ..types import EnvSpec, Rollout, State, Windows, from_state, to_state
from .returns import gae

MINIMUM, MAXIMUM = -16.0, 2.0
PARTS = 16
"""Sets of windows between two searches; gradient steps take turns with them, so that none repeats a few windows."""
SEARCH_EVERY = 2048
"""New steps after which windows are searched again: every stored step is valued anew."""
TRACE = 0.95
"""Lambda of the returns: with 1 they would be those of whole episodes, and noisier."""
KEEP = 0.99
"""Share of the past in the running average of the usual gradient, of which a single minibatch shows little."""
EXPLAINED = 0.5
"""Windows are drawn by advantage only where values explain at least this share of the variance of the returns."""
VALUED_ROWS = 4096
"""Steps that are valued at once."""


@dataclass(frozen=True, kw_only=True)  # no slots: a config inherits from this class and from the settings of its family
class HTermConfig:
    """Settings of the Hamiltonian term."""

    h_term: bool = False
    """Add the gradient of the K-step energy of good recent windows to that of the policy's loss."""
    h_lambda: float = tunable(2**-3, 2**-10, 1.0, "log", ge=0.0, only_with={"h_term": True})
    """Weight of that energy."""
    h_ratio: float = setting(2.0, ge=0.0, only_with={"h_term": True})
    """Its gradient is at most this times as long as the running average of that of the policy's loss, and loses what is
    against that average; 0 adds it as it is, without a limit."""
    h_select: Literal["advantage", "reward"] = setting("advantage", only_with={"h_term": True})
    """Windows in proportion to their `advantage` over the present values, none while these explain less than half of
    the variance of returns; or those with the highest `reward`."""
    h_length: int = setting(4, ge=1, only_with={"h_term": True})
    """Steps of a window (K)."""
    h_windows: int = setting(64, ge=1, only_with={"h_term": True})
    """Number of windows in a gradient step (L)."""
    h_gamma: float = tunable(0.8, 0.5, 0.99, gt=0.0, le=1.0, only_with={"h_term": True})
    """Discount within a window."""
    h_store: int = setting(32_768, ge=1, only_with={"h_term": True})
    """Newest steps, over all environments, in which windows are searched."""


class HTerm:
    """The store of recent steps, the windows found in it, and how their gradient joins that of the usual loss."""

    direction: Tensor
    """Running average [P] of the usual gradient."""

    def __init__(self, config: HTermConfig, spec: EnvSpec, device: torch.device):
        self.config = config
        self.num_parts = PARTS if config.h_select == "advantage" else 1
        shape = (self.num_parts * config.h_windows, config.h_length)
        obs = tree.map_leaves(lambda leaf: leaf.zeros(*shape, device=device), spec.obs)
        action = spec.action_leaf.zeros(*shape, device=device)
        # Until there are windows, all have weight 0 and no gradient.
        self.windows = Windows(obs, action, torch.zeros(shape, device=device))
        self.trajectories = TrajectoryStore(config.h_store, spec, device)
        self.num_new = 0  # steps since the last search
        self.turn = 0  # of the sets of windows

    def build_direction(self, policy: nn.Module) -> None:
        params = list(policy.parameters())
        self.direction = torch.zeros(sum(p.numel() for p in params), device=params[0].device)

    @torch.no_grad()
    def see(
        self,
        rollout: Rollout,
        values_of: Callable[[Tree], Tensor],
        hypers: Any,
        learned_rewards: Callable[[Tensor], Tensor],
    ) -> None:
        """Store new steps, and search all stored steps for windows if enough of them are new."""
        self.trajectories.add(rollout)
        self.num_new += rollout.num_steps
        windows = None
        if self.config.h_select == "reward":
            windows = self.trajectories.top_windows(self.config.h_windows, self.config.h_length, hypers.h_gamma)
        elif self.num_new >= min(SEARCH_EVERY, len(self.trajectories)) and self.trajectories.has_enough():
            advantage_FN, value_FN = self.advantages(values_of, hypers.gamma, learned_rewards)
            # Windows of advantage 0 have no weight. Before the first reward, for example, all advantages are errors.
            advantage_FN = advantage_FN * values_explain(advantage_FN + value_FN, advantage_FN)
            num_windows = self.num_parts * self.config.h_windows
            windows = self.trajectories.draw_windows(advantage_FN, num_windows, self.config.h_length, hypers.h_gamma)
        if windows is not None:
            self.windows, self.num_new = windows, 0

    def advantages(
        self, values_of: Callable[[Tree], Tensor], gamma: Tensor, learned_rewards: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """How much more than expected now followed each stored step, and what is expected: [F, N], oldest row first."""
        store = self.trajectories
        num_lanes = store.terminated.shape[1]
        row_F = store.filled_rows()
        place_FN = row_F.unsqueeze(-1) * num_lanes + torch.arange(num_lanes, device=row_F.device)
        blocks = place_FN.flatten().split(VALUED_ROWS)
        value_FN = torch.cat([values_of(store.obs_at(block)) for block in blocks]).view_as(place_FN)
        terminated_FN, truncated_FN = store.terminated[row_F], store.truncated[row_F]
        next_value_FN = torch.cat([value_FN[1:], values_of(store.next_obs_at(place_FN[-1])).unsqueeze(0)])
        cut = truncated_FN.nonzero(as_tuple=True)
        if cut[0].numel():
            next_value_FN[cut] = values_of(store.next_obs_at(place_FN[cut]))
        reward_FN = learned_rewards(store.reward[row_F])
        return gae(reward_FN, value_FN, next_value_FN, terminated_FN, truncated_FN, gamma, TRACE), value_FN

    def next_windows(self) -> Windows:
        """The windows of the next gradient step: every so-manyth, so that each set covers the whole store."""
        part: Windows = tree.rows(self.windows, slice(self.turn, None, self.num_parts))
        self.turn = (self.turn + 1) % self.num_parts
        return part

    def add(self, own: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
        """Add the energy's gradient to the usual one, both flat; the length of what was added / that of the usual one.

        The policy's parameters come first in both. The limit comes from the running average: most of a minibatch's
        gradient is noise, which cancels out over minibatches, and the energy's gradient does not.
        """
        num_params = len(self.direction)
        own_P, usual_P = own[:num_params], grad[:num_params]
        length = torch.linalg.vector_norm
        if self.config.h_ratio > 0:
            d = self.direction.lerp_(usual_P, 1 - KEEP)
            own_P = own_P - (d @ own_P).clamp(max=0.0) / (d @ d).clamp(min=1e-20) * d  # less what is against it
            weight = torch.minimum(weight, self.config.h_ratio * length(d) / length(own_P).clamp(min=1e-12))
        share = weight * length(own_P) / length(usual_P).clamp(min=1e-12)
        usual_P.add_(weight * own_P)
        return share

    def state_dict(self) -> State:
        obs, action, weight = self.windows
        return {
            "trajectories": self.trajectories.state_dict(),
            "windows": {"obs": to_state(obs), "action": action, "weight": weight},
            "direction": self.direction.clone(),
            "num_new": self.num_new,
            "turn": self.turn,
        }

    def load_state_dict(self, state: State) -> None:
        self.trajectories.load_state_dict(state["trajectories"])
        device, windows = self.direction.device, state["windows"]
        found = Windows(from_state(windows["obs"]), windows["action"], windows["weight"])
        self.windows = tree.map_leaves(lambda x: x.to(device), found)
        self.direction.copy_(state["direction"])
        self.num_new, self.turn = state["num_new"], state["turn"]


def energy(excess_LK: Tensor, weight_LK: Tensor) -> Tensor:
    """Mean over windows of the formula above."""
    return -(excess_LK.cumsum(-1).clamp(MINIMUM, MAXIMUM) * weight_LK).sum(-1).mean()


def values_explain(returns: Tensor, advantage: Tensor) -> Tensor:
    """Whether values, which are returns minus advantages, explain enough of the variance of the returns."""
    return advantage.var(correction=0) <= (1 - EXPLAINED) * returns.var(correction=0)
