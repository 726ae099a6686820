"""Agents, memories and networks that the tests of this folder run, and small environments for them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from choosing import MaskedLever, MaskedLevers
from teams import Aims, LeavingSigns, PlainSigns
from torch import Tensor

from elegantrl.envs import make_env
from elegantrl.envs.tensor import TensorEnv
from elegantrl.envs.vec_env import VecEnv
from elegantrl.registry import find_agent
from elegantrl.roles.learner import Learner
from elegantrl.types import ActionSpec, Leaf
from tests.names import SINGLE_AGENTS, TEAM_AGENTS

LANES, HORIZON = 3, 5
Case = tuple[str, Any, dict[str, Any]]
"""An agent, an environment and settings."""


class Sights(TensorEnv):
    """A walk of which an agent sees cells with categories, flags, and numbers: an encoder for each."""

    obs: ClassVar[Any] = {"cells": Leaf((5, 5, 2), "uint8"), "flags": Leaf((6, 6), "bool"), "place": Leaf((2,))}
    action, max_episode_steps = ActionSpec(choices=(3,)), 7

    def initial(self, num_rows: int) -> Tensor:
        return torch.randint(4, (num_rows, 1), generator=self.generator, device=self.device)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = state + action.unsqueeze(1) - 1
        return state, state[:, 0].float(), state[:, 0] > 5

    def observe(self, state: Tensor) -> dict[str, Tensor]:
        cell = torch.arange(50, device=self.device) + state
        flag = torch.arange(36, device=self.device) + state
        place = torch.cat([state, -state], 1).float()
        return {"cells": (cell % 7).byte().view(-1, 5, 5, 2), "flags": (flag % 5 == 0).view(-1, 6, 6), "place": place}


ENVS: dict[str, Any] = {"discrete": MaskedLever, "multi_discrete": MaskedLevers, "continuous": "TensorPendulum"}
TEAM_ENVS: dict[str, Any] = {"discrete": LeavingSigns, "multi_discrete": PlainSigns, "continuous": Aims}
REPLAY: dict[str, Any] = {"buffer_size": 40, "batch_size": 8, "learning_starts": 10, "updates_per_step": 0.1}
"""The ring of 13 rows wraps in the third fragment."""
NORMED: dict[str, Any] = {"normalize_obs": True, "layer_norm": True}
H_TERM: dict[str, Any] = {"h_term": True, "h_store": 12, "h_windows": 4, "h_length": 2}
GRU: dict[str, Any] = {"memory": "gru", "memory_size": 4}
LSTM: dict[str, Any] = {"memory": "lstm", "memory_size": 4}


def plain(names: list[str], envs: dict[str, Any]) -> list[Case]:
    """Every agent with every kind of action."""
    kinds = {name: sorted(find_agent(name).agent.actions) for name in names}
    return [(name, envs[kind], {}) for name in names for kind in kinds[name]]


CASES: list[Case] = [
    *plain(SINGLE_AGENTS, ENVS),
    *plain(TEAM_AGENTS, TEAM_ENVS),
    ("ppo", "TensorPendulum", {**NORMED, "normalize_value": True, "entropy_coef": 0.1, "entropy_schedule": "linear"}),
    ("ppo", MaskedLever, {"vtrace": True, "lr_schedule": "linear"}),
    ("ppo", MaskedLever, {"target_kl": 1e-6}),
    ("ppo", "TensorPendulum", H_TERM),
    ("ppo", MaskedLever, {**GRU, "num_epochs": 1}),
    ("a2c", "TensorPendulum", {**LSTM, "batch_size": 64}),
    ("ppo", Sights, {"normalize_obs": True, "encoder": "small_cnn"}),
    ("dqn", Sights, {"n_step": 2}),
    ("d3qn", MaskedLever, {**NORMED, "prioritized": True, "n_step": 3}),
    ("sac", "TensorPendulum", {**NORMED, **H_TERM, "prioritized": True, "warm_up_hold": 3}),
    ("td3", "TensorPendulum", {"noise": "ou", "target_critics": "subset", "num_critics": 3}),
    ("mappo", LeavingSigns, {"separate": True, "team_reward": True}),
    ("mappo", PlainSigns, {**GRU, "num_epochs": 1, "batch_size": 64}),
    ("vdn", LeavingSigns, {"separate": True, **LSTM}),
    ("qmix", PlainSigns, {**GRU, **NORMED, "prioritized": True}),
    ("matd3", LeavingSigns, {**NORMED, "prioritized": True}),
]


def case_id(value: Any) -> str:
    """Names of environments, and names of settings."""
    return "-".join(value) or "plain" if isinstance(value, dict) else getattr(value, "__name__", str(value))


def build_env(env: Any, device: torch.device, **settings: Any) -> VecEnv:
    return make_env(env, LANES, device=device, **({"frame_stack": 2} if env is Sights else {}), **settings)


def build_learner(name: str, env: VecEnv, device: torch.device, settings: dict[str, Any]) -> Learner:
    """A learner whose networks are the same for every device."""
    entry = find_agent(name)
    own = {"num_epochs": 2, "batch_size": 8} if entry.agent.memory == "rollout" else REPLAY
    own = {**own, **({"burn_in": 2} if name == "recurrent_dqn" else {"actor_interval": 2} if name == "redq" else {})}
    values = {"hidden": (8, 8), "horizon": HORIZON, **entry.preset, **own, **settings}
    torch.manual_seed(0)
    return Learner(name, entry.config(**values), env.spec, device, 0, gradients="autograd")
