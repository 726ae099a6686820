"""Acting: environments, a copy of the policy, and a random stream of its own. Knows no agent.

Axes: T rollout steps, N lanes, K finished episodes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..envs.vec_env import VecEnv
from ..nets.policies import FlatPolicy, PolicySpec
from ..rng import derive_seed, torch_stream
from ..types import Episodes, Fragment, Rollout, State, Weights


class Worker:
    """Steps one group of environment slots with whatever weights it is handed."""

    def __init__(
        self, env: VecEnv, policy_spec: PolicySpec, seed: int, slot_group: int = 0, *, owns_env: bool = True
    ):
        self.env, self.slot_group, self.owns_env = env, slot_group, owns_env
        self.policy = FlatPolicy(policy_spec, env.device)
        self.generator = torch_stream(seed, "act", slot_group, device=env.device)
        self.obs = env.reset(derive_seed(seed, "env", slot_group))
        # Return and length of each open episode.
        self.open_return = torch.zeros(env.spec.num_envs, dtype=torch.float64)
        self.open_length = torch.zeros(env.spec.num_envs, dtype=torch.int64)

    def exactness(self) -> str:
        """What a resume restores of this worker's open episodes."""
        return self.env.exactness

    @torch.no_grad()
    def sample(self, weights: Weights, horizon: int, seq: int) -> Fragment:
        """Take ``horizon`` steps in every lane with the given weights."""
        policy = self.policy.load(weights.flat)
        obs, rows = self.obs, []
        for _ in range(horizon):
            action, logp = policy.act(obs, True, self.generator)
            step = self.env.step(action)
            rows.append((obs, action, step.reward, step.terminated, step.truncated, step.next_obs, logp))
            obs = step.obs
        self.obs = obs
        rollout = Rollout(*(torch.stack(column) for column in zip(*rows, strict=True)))
        return Fragment(self.slot_group, seq, weights.version, rollout, self.finished_episodes(rollout))

    def finished_episodes(self, rollout: Rollout) -> Episodes:
        """Returns and lengths of the episodes that ended here; open ones are carried to the next fragment."""
        # One transfer to the host per fragment, not per step.
        reward, ended = rollout.reward.cpu().double(), (rollout.terminated | rollout.truncated).cpu()
        total_return = reward.cumsum(0) + self.open_return
        total_length = torch.arange(1, len(reward) + 1).unsqueeze(1) + self.open_length
        self.open_return, self.open_length = total_return[-1], total_length[-1]
        lane, time = ended.T.nonzero(as_tuple=True)  # by lane, then by time
        if len(lane) == 0:
            return Episodes(reward.new_empty(0), self.open_length.new_empty(0))
        # A lane's totals run on across its episodes: an episode's share is the total at its end minus the one before.
        returns, lengths = total_return[time, lane], total_length[time, lane]
        first = torch.ones_like(lane, dtype=torch.bool)
        first[1:] = lane[1:] != lane[:-1]
        last = torch.ones_like(first)
        last[:-1] = first[1:]
        self.open_return = self.open_return.clone()
        self.open_return[lane[last]] -= returns[last]
        self.open_length = self.open_length.clone()
        self.open_length[lane[last]] -= lengths[last]
        return Episodes(_differences(returns, first), _differences(lengths, first))

    def state_dict(self) -> State:
        return {
            "env": self.env.state_dict(),
            "obs": self.obs,
            "generator": self.generator.get_state(),
            "open_return": self.open_return,
            "open_length": self.open_length,
        }

    def load_state_dict(self, state: State) -> None:
        self.obs = self.env.load_state_dict(state["env"])
        self.generator.set_state(state["generator"].cpu())
        self.open_return, self.open_length = state["open_return"].clone(), state["open_length"].clone()

    def close(self) -> None:
        if self.owns_env:
            self.env.close()


def _differences(total: Tensor, first: Tensor) -> Tensor:
    """Each entry minus the one before it, except where ``first``."""
    before = torch.zeros_like(total)
    before[1:] = total[:-1]
    return total - before.masked_fill(first, 0)
