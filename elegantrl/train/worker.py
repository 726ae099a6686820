"""Acting: environments, a copy of the policy, and a random stream of its own. Knows no agent.

Axes: T rollout steps, N lanes, K finished episodes.
"""

from __future__ import annotations

import numpy as np
import torch

from ..envs.vec_env import VecEnv
from ..nets.policies import FlatPolicy, PolicySpec
from ..rng import derive_seed, torch_stream
from ..types import Episodes, Fragment, Rollout, State, Weights

NO_EPISODES = Episodes(np.empty(0), np.empty(0, dtype=np.int64))


class Worker:
    """Steps one group of environment slots with whatever weights it is handed."""

    def __init__(self, env: VecEnv, policy_spec: PolicySpec, seed: int, slot_group: int = 0, *, owns_env: bool = True):
        self.env, self.slot_group, self.owns_env = env, slot_group, owns_env
        self.policy = FlatPolicy(policy_spec, env.device)
        self.generator = torch_stream(seed, "act", slot_group, device=env.device)
        with torch.inference_mode():
            self.obs = env.reset(derive_seed(seed, "env", slot_group))
        # Return and length of each open episode.
        self.open_return = np.zeros(env.spec.num_envs)
        self.open_length = np.zeros(env.spec.num_envs, dtype=np.int64)

    def exactness(self) -> str:
        """What a resume restores of this worker's open episodes."""
        return self.env.exactness

    def sample(self, weights: Weights, horizon: int, seq: int) -> Fragment:
        """Take ``horizon`` steps in every lane with the given weights."""
        policy, env, generator = self.policy.load(weights.flat), self.env, self.generator
        obs, rows = self.obs, []
        with torch.inference_mode():  # a tenth faster than no_grad; what is stacked outside are ordinary tensors again
            # Nothing but the actions is computed step by step: between two steps of an environment each of torch's
            # kernels is cold and takes several times as long as in a row of its like.
            for draw in policy.draw(horizon, env.spec.num_envs, generator):
                action, out = policy.explore(obs, draw)
                step = env.step(action)
                rows.append((obs, action, step.reward, step.terminated, step.truncated, step.next_obs, out))
                if policy.remembers:
                    policy.forget(step.terminated | step.truncated)
                obs = step.obs
        self.obs = obs
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        columns[-1] = policy.log_prob(out=columns[-1], action=columns[1])
        rollout = Rollout(*columns)
        return Fragment(self.slot_group, seq, weights.version, rollout, self.finished_episodes(rollout))

    def finished_episodes(self, rollout: Rollout) -> Episodes:
        """Returns and lengths of the episodes that ended here; open ones are carried to the next fragment."""
        # One transfer to the host per fragment, not per step; NumPy's calls cost less than torch's at these sizes.
        reward = rollout.reward.numpy(force=True)
        ended = (rollout.terminated | rollout.truncated).numpy(force=True)
        if not ended.any():
            self.open_return = self.open_return + reward.sum(0, dtype=np.float64)
            self.open_length = self.open_length + len(reward)
            return NO_EPISODES
        total_return = reward.cumsum(0, dtype=np.float64) + self.open_return
        lane, time = ended.T.nonzero()  # by lane, then by time
        # A lane's totals run on across its episodes: an episode's share is the total at its end minus the one before.
        returns, lengths = total_return[time, lane], time + 1 + self.open_length[lane]
        first = np.concatenate([[True], lane[1:] != lane[:-1]])
        last = np.concatenate([first[1:], [True]])
        self.open_return, self.open_length = total_return[-1], self.open_length + len(reward)
        self.open_return[lane[last]] -= returns[last]
        self.open_length[lane[last]] -= lengths[last]
        latest_last = np.argsort(time, kind="stable")
        return Episodes(_differences(returns, first)[latest_last], _differences(lengths, first)[latest_last])

    def state_dict(self) -> State:
        return {
            "env": self.env.state_dict(),
            "obs": self.obs,
            "generator": self.generator.get_state(),
            "open_return": torch.from_numpy(self.open_return),
            "open_length": torch.from_numpy(self.open_length),
            "explore": self.policy.policy.explore_state(),
        }

    def load_state_dict(self, state: State) -> np.ndarray:
        """Continue from ``state``; which lanes [N] had to begin a new episode."""
        with torch.inference_mode():
            self.obs = self.env.load_state_dict(state["env"])
        self.generator.set_state(state["generator"].cpu())
        # Where an environment could not restore an open episode a new one has begun.
        restarted = (self.obs != state["obs"].to(self.obs.device)).any(-1).numpy(force=True)
        self.open_return = np.where(restarted, 0.0, state["open_return"].numpy())
        self.open_length = np.where(restarted, 0, state["open_length"].numpy())
        policy = self.policy.policy
        if policy.remembers:
            policy.load_explore_state(state["explore"])
            policy.forget(torch.from_numpy(restarted).to(self.obs.device))
        return restarted

    def close(self) -> None:
        if self.owns_env:
            self.env.close()


def _differences(total: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Each entry minus the one before it, except where ``first``."""
    before = np.concatenate([total[:1], total[:-1]])
    return np.where(first, total, total - before)
