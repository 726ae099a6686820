"""Acting: environments, a copy of the policy, and a random stream of its own; independent of agents.

Axes: T rollout steps, N lanes, K finished episodes.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .. import tree
from ..envs.vec_env import VecEnv
from ..errors import NonFinite
from ..nets.policies import FlatPolicy, PolicySpec
from ..rng import derive_seed, torch_stream
from ..tree import Tree
from ..types import Episodes, Fault, Fragment, Rollout, State, Weights, from_state, to_state
from .acting import actor_of

NO_EPISODES = Episodes(np.empty(0), np.empty(0, dtype=np.int64))

MAX_REJECTED = 10
"""Maximum number of fragments in a row that are rejected."""


class GroupActor:
    """Steps one group of environments with the weights of each request."""

    def __init__(
        self,
        env: VecEnv,
        policy_spec: PolicySpec,
        seed: int,
        slot_group: int = 0,
        *,
        owns_env: bool = True,
        on_nonfinite: Literal["reject", "stop"] = "reject",
    ):
        self.env, self.slot_group, self.owns_env = env, slot_group, owns_env
        self.on_nonfinite = on_nonfinite
        self.policy = FlatPolicy(policy_spec, env.device)
        self.actor = actor_of(self.policy.policy, env.spec.num_envs)
        self.initial_carry = self.policy.policy.initial_carry(env.spec.num_envs)
        self.carry = self.initial_carry
        self.generator = torch_stream(seed, "act", slot_group, device=env.device)
        with torch.inference_mode():
            self.obs = env.reset(derive_seed(seed, "env", slot_group))
        # Return and length of each open episode.
        self.open_return = np.zeros(env.spec.num_envs)
        self.open_length = np.zeros(env.spec.num_envs, dtype=np.int64)

    def exactness(self) -> str:
        """How much of this group's open episodes a resume restores."""
        return self.env.exactness

    def sample(self, weights: Weights, horizon: int, seq: int) -> Fragment:
        """Take ``horizon`` steps in every lane with the given weights.

        Steps that contain a NaN or an infinity are rejected and replaced by further steps.
        """
        self.policy.load(weights.flat)
        faults: list[Fault] = []
        rejected = 0
        while True:
            rollout, raised = self.roll_out(horizon)
            nonfinite = find_nonfinite(rollout)
            if nonfinite is None:
                break
            lanes = ~finite_steps(rollout).all(0)
            rejected += 1
            if self.on_nonfinite == "stop" or rejected > MAX_REJECTED or not self.reset_lanes(lanes, rollout):
                raise NonFinite(
                    f"{self.env.spec.name} gave a {nonfinite.what} in lane {nonfinite.lane} (step {nonfinite.step} of"
                    f" fragment {seq}); fix the environment and resume"
                )
            # An error that an environment raises because of a NaN action is not another fault.
            faults += [fault for fault in raised if not lanes[fault.lane]] + [nonfinite]
        address, lost = (self.slot_group, seq, weights.version), rejected * rollout.num_steps
        return Fragment(*address, rollout, self.finished_episodes(rollout), (*faults, *raised), lost)

    def roll_out(self, horizon: int) -> tuple[Rollout, list[Fault]]:
        """The next steps of every lane, and the faults of environments during them."""
        env, actor = self.env, self.actor
        obs, carry = self.obs, self.carry
        rows: list[tuple[Tree, ...]] = []
        raised: list[Fault] = []
        with torch.inference_mode():  # a tenth faster than no_grad; tensors that are stacked outside are ordinary ones
            # Only the actions are computed step by step: between two environment steps torch's kernels are out of the
            # processor's caches and take several times as long as many calls of the same kernel in a row.
            for draw in actor.draw(horizon, env.spec.num_envs, self.generator):
                action, out, carry = actor.explore(obs, carry, draw)
                step = env.step(action)
                if step.faults:
                    raised += [fault._replace(step=len(rows)) for fault in step.faults]
                rows.append((obs, action, step.reward, step.terminated, step.truncated, step.next_obs, out))
                if self.initial_carry != ():
                    carry = tree.where(step.terminated | step.truncated, self.initial_carry, carry)
                obs = step.obs
        first_carry = tree.map_leaves(torch.clone, self.carry)  # outside of inference mode, for gradients
        self.obs, self.carry = obs, carry
        *columns, out = [tree.stack(column) for column in zip(*rows, strict=True)]
        kept = self.policy.policy.kept(out, columns[1])
        return Rollout(*columns)._replace(kept=kept, carry=first_carry), raised

    def reset_lanes(self, lanes: Tensor, rollout: Rollout) -> bool:
        """Begin new episodes in some lanes [N] after rejected steps; returns whether that was possible."""
        with torch.inference_mode():
            obs = self.env.reset_lanes(lanes)
        if obs is None:
            return False
        self.obs = obs
        self.carry = tree.where(lanes, self.initial_carry, self.carry)
        with np.errstate(invalid="ignore"):
            self.finished_episodes(rollout)  # episodes of other lanes continue
        self.open_return[lanes.numpy(force=True)] = 0.0
        self.open_length[lanes.numpy(force=True)] = 0
        return True

    def finished_episodes(self, rollout: Rollout) -> Episodes:
        """Returns and lengths of the episodes that ended in this rollout; open ones continue in the next."""
        # One transfer to the host per fragment, not per step; NumPy's calls cost less than torch's at these sizes.
        reward = team_reward(rollout.reward).numpy(force=True)
        ended = (rollout.terminated | rollout.truncated).numpy(force=True)
        if not ended.any():
            self.open_return = self.open_return + reward.sum(0, dtype=np.float64)
            self.open_length = self.open_length + len(reward)
            return NO_EPISODES
        total_return = np.empty(reward.shape)
        running = self.open_return
        for now, total in zip(reward, total_return, strict=True):  # NumPy's cumsum along a column is five times slower
            running = np.add(running, now, out=total)
        time, lane = divmod(np.flatnonzero(ended), ended.shape[1])
        by_lane = np.argsort(lane, kind="stable")  # and by time within a lane
        time, lane = time[by_lane], lane[by_lane]
        # A lane's totals continue across its episodes: an episode's return is the difference of totals at two ends.
        returns, lengths = total_return[time, lane], time + 1 + self.open_length[lane]
        first = np.concatenate([[True], lane[1:] != lane[:-1]])
        last = np.concatenate([first[1:], [True]])
        self.open_return, self.open_length = total_return[-1].copy(), self.open_length + len(reward)
        self.open_return[lane[last]] -= returns[last]
        self.open_length[lane[last]] -= lengths[last]
        episodes = Episodes(np.empty_like(returns), np.empty_like(lengths))
        episodes.returns[by_lane] = _differences(returns, first)
        episodes.lengths[by_lane] = _differences(lengths, first)
        return episodes

    def state_dict(self) -> State:
        return {
            "env": self.env.state_dict(),
            "obs": to_state(self.obs),
            "generator": self.generator.get_state(),
            "open_return": torch.from_numpy(self.open_return),
            "open_length": torch.from_numpy(self.open_length),
            "carry": to_state(self.carry),
        }

    def load_state_dict(self, state: State) -> np.ndarray:
        """Continue from ``state``; returns which lanes [N] had to begin a new episode."""
        with torch.inference_mode():
            self.obs = self.env.load_state_dict(state["env"])
        self.generator.set_state(state["generator"].cpu())
        # A lane whose environment could not restore the open episode has begun a new one.
        changed = tree.rows_differ(self.obs, from_state(state["obs"]))
        restarted = (changed | self.env.restarted_lanes()).numpy(force=True)
        self.open_return = np.where(restarted, 0.0, state["open_return"].numpy())
        self.open_length = np.where(restarted, 0, state["open_length"].numpy())
        saved = tree.map_leaves(lambda like, x: x.to(like.device), self.initial_carry, from_state(state["carry"]))
        self.carry = tree.where(torch.from_numpy(restarted).to(self.env.device), self.initial_carry, saved)
        return restarted

    def close(self) -> None:
        if self.owns_env:
            self.env.close()


def find_nonfinite(rollout: Rollout) -> Fault | None:
    """The first NaN or infinity among observations and rewards."""
    # A sum is finite only if all its terms are: a reduction per leaf and one host read per fragment.
    if math.isfinite(sum(x.sum() for x in floats(rollout))):
        return None
    bad = (~finite_steps(rollout)).nonzero()
    if not len(bad):
        return None
    step, lane = bad[0].tolist()
    name = "observation" if rollout.reward[step, lane].isfinite().all() else "reward"
    return Fault(lane, f"non-finite {name}", step=step)


def finite_steps(rollout: Rollout) -> Tensor:
    """The steps [T, N] at which all observations and rewards are finite."""
    shape = (*rollout.terminated.shape, -1)
    return torch.stack([x.isfinite().reshape(shape).all(-1) for x in floats(rollout)]).all(0)


def floats(rollout: Rollout) -> list[Tensor]:
    """Observations and rewards with a floating-point type: integers are always finite."""
    leaves = tree.leaves((rollout.obs, rollout.next_obs, rollout.reward))
    return [x for x in leaves if x.is_floating_point()]


def team_reward(reward: Tensor) -> Tensor:
    """Rewards [T, N]: a team's reward is the sum over its agents."""
    return reward if reward.dim() == 2 else reward.sum(-1)


def _differences(total: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Each entry minus the one before it, except where ``first``."""
    before = np.concatenate([total[:1], total[:-1]])
    return np.where(first, total, total - before)
