"""Workers and learners: alignment of a rollout, episode accounting, step and update counters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elegantrl.agents.base import AgentConfig
from elegantrl.agents.dqn import DQNConfig
from elegantrl.agents.ppo import PPOConfig
from elegantrl.agents.sac import SACConfig
from elegantrl.data.memory import Replay
from elegantrl.envs import VecEnv, make_env
from elegantrl.errors import NonFinite
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import CategoricalPolicy, GaussianPolicy, PolicySpec
from elegantrl.registry import find_agent
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.types import ActionSpec, EnvSpec, Episodes, Fragment, Leaf, Rollout, State, Step, Weights
from tests.names import SINGLE_AGENTS

CPU = torch.device("cpu")


class ScriptedEnv(VecEnv):
    """Plays given rewards and ends [T, N]. Lane n sees 100 n + t; a final observation is seen as its negative."""

    def __init__(self, reward: Tensor, terminated: Tensor, truncated: Tensor):
        self.reward, self.terminated, self.truncated = reward, terminated, truncated
        self.device = CPU
        self.spec = EnvSpec("Scripted", (1,), ActionSpec(choices=(2,)), reward.shape[1])
        self.time = 0
        self.actions: list[Tensor] = []

    def obs(self) -> Tensor:
        return (torch.arange(self.spec.num_envs) * 100.0 + self.time).unsqueeze(1)

    def reset(self, seed: int) -> Tensor:
        self.time = 0
        return self.obs()

    def step(self, action: Tensor) -> Step:
        self.actions.append(action)
        t = self.time
        self.time += 1
        ended = self.terminated[t] | self.truncated[t]
        next_obs = torch.where(ended.unsqueeze(1), -self.obs(), self.obs())
        return Step(self.obs(), self.reward[t], self.terminated[t], self.truncated[t], next_obs)

    def state_dict(self) -> State:
        return {"time": self.time}

    def load_state_dict(self, state: State) -> Tensor:
        self.time = state["time"]
        return self.obs()


SPEC = PolicySpec("categorical", Leaf((1,)), ActionSpec(choices=(2,)), NetSpec(hidden=(4,)))


def scripted(
    reward: list[list[float]], terminated: list[tuple[int, int]], truncated: list[tuple[int, int]]
) -> GroupActor:
    """Rewards by lane; ends as (time, lane)."""
    rewards = torch.tensor(reward).T.contiguous()
    flags = torch.zeros(2, *rewards.shape, dtype=torch.bool)
    for kind, places in enumerate((terminated, truncated)):
        for time, lane in places:
            flags[kind, time, lane] = True
    return GroupActor(ScriptedEnv(rewards, flags[0], flags[1]), SPEC, seed=0)


def weights() -> Weights:
    return Weights(3, SPEC.build().to_flat())


def pairs(episodes: Episodes) -> list[tuple[float, int]]:
    return list(zip(episodes.returns.tolist(), episodes.lengths.tolist(), strict=True))


def test_episode_returns_and_lengths_across_fragments() -> None:
    # Guards against: R8, a logged training return that is a log-probability.
    # Lane 0: 1 2 | 3 4 5 | 6 with ends after the second step (MDP) and the fifth (cut).   Lane 1: 10 20 30 40 | 50 60.
    worker = scripted([[1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60]], [(1, 0)], [(4, 0), (3, 1)])
    first = worker.sample(weights(), 3, 0).episodes
    assert pairs(first) == [(3.0, 2)]
    second = worker.sample(weights(), 3, 1).episodes
    assert sorted(pairs(second)) == [(12.0, 3), (100.0, 4)]
    assert worker.open_return.tolist() == [6.0, 110.0] and worker.open_length.tolist() == [1, 2]
    assert first.returns.dtype == np.float64 and first.lengths.dtype == np.int64


def test_several_episodes_of_one_lane_in_one_fragment() -> None:
    worker = scripted([[1, 2, 4, 8, 16], [1, 1, 1, 1, 1]], [(0, 0), (2, 0), (3, 0)], [])
    episodes = worker.sample(weights(), 5, 0).episodes
    assert pairs(episodes) == [(1.0, 1), (6.0, 2), (8.0, 1)]
    assert worker.open_return.tolist() == [16.0, 5.0] and worker.open_length.tolist() == [1, 5]


def test_no_finished_episode() -> None:
    worker = scripted([[1, 2, 3]], [], [])
    for seq in range(3):
        episodes = worker.sample(weights(), 1, seq).episodes
        assert pairs(episodes) == [] and episodes.returns.dtype == np.float64


@settings(max_examples=50, deadline=None)
@given(
    lanes=st.integers(1, 4),
    fragments=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 999),
    end_share=st.sampled_from([0.05, 0.3, 0.8]),
)
def test_episodes_equal_a_plain_loop(lanes: int, fragments: list[int], seed: int, end_share: float) -> None:
    steps = sum(fragments)
    g = torch.Generator().manual_seed(seed)
    reward = torch.randint(-5, 6, (steps, lanes), generator=g).float()
    terminated = torch.rand(steps, lanes, generator=g) < end_share / 2
    truncated = (torch.rand(steps, lanes, generator=g) < end_share / 2) & ~terminated
    worker = GroupActor(ScriptedEnv(reward, terminated, truncated), SPEC, seed=0)
    opened = [(0.0, 0)] * lanes
    time = 0
    for seq, horizon in enumerate(fragments):
        found = pairs(worker.sample(weights(), horizon, seq).episodes)
        expected = []
        for t in range(time, time + horizon):
            for n in range(lanes):
                total, length = opened[n][0] + float(reward[t, n]), opened[n][1] + 1
                opened[n] = (total, length)
                if terminated[t, n] or truncated[t, n]:
                    expected.append((total, length))
                    opened[n] = (0.0, 0)
        time += horizon
        assert sorted(found) == sorted(expected)
    assert list(zip(worker.open_return.tolist(), worker.open_length.tolist(), strict=True)) == opened


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused_where_lanes_cannot_be_reset(value: float) -> None:
    worker = scripted([[1, value, 3]], [], [])
    with pytest.raises(NonFinite, match=r"^Scripted gave a non-finite reward in lane 0 \(step 1 of fragment 7\); fix"):
        worker.sample(weights(), 3, 7)


def test_large_finite_rewards_pass() -> None:
    worker = scripted([[3e38, 3e38]], [], [])  # their sum overflows, none of them does
    assert worker.sample(weights(), 2, 0).faults == ()


def test_rows_of_a_rollout_fit_together() -> None:
    worker = scripted([[1, 2, 3, 4], [5, 6, 7, 8]], [(1, 0)], [(2, 1)])
    one = worker.sample(weights(), 3, 7)
    assert (one.slot_group, one.seq, one.version) == (0, 7, 3)
    rollout = one.rollout
    assert rollout.obs[..., 0].tolist() == [[0, 100], [1, 101], [2, 102]]
    assert rollout.next_obs[..., 0].tolist() == [[1, 101], [-2, 102], [3, -103]]
    assert rollout.reward.tolist() == [[1, 5], [2, 6], [3, 7]]
    assert rollout.terminated.nonzero().tolist() == [[1, 0]] and rollout.truncated.nonzero().tolist() == [[2, 1]]
    env = worker.env
    assert isinstance(env, ScriptedEnv)
    assert torch.equal(rollout.action, torch.stack(env.actions))
    assert worker.sample(weights(), 1, 8).rollout.obs[..., 0].tolist() == [[3, 103]]  # goes on where it stopped


@pytest.mark.parametrize(("env_id", "num_envs"), [("TensorCartPole", 5), ("TensorPendulum", 5), ("CartPole-v1", 2)])
def test_stored_log_probs_equal_recomputed_ones(env_id: str, num_envs: int) -> None:
    # Guards against: P8, stored log-probabilities that are not those of the policy that acted.
    env = make_env(env_id, num_envs)
    kind = "categorical" if env.spec.action.kind == "discrete" else "gaussian"
    spec = PolicySpec(kind, env.spec.obs, env.spec.action, NetSpec(normalize_obs=True))
    policy = spec.build()
    assert isinstance(policy, CategoricalPolicy | GaussianPolicy)
    worker = GroupActor(env, spec, seed=2)
    rollout = worker.sample(Weights(0, policy.to_flat()), 60, 0).rollout
    torch.testing.assert_close(rollout.kept, policy.dist(rollout.obs).log_prob(rollout.action), atol=1e-5, rtol=1e-5)
    ended = (rollout.terminated | rollout.truncated)[:-1]
    assert torch.equal(rollout.obs[1:][~ended], rollout.next_obs[:-1][~ended])


@pytest.mark.parametrize(("env_id", "num_envs"), [("TensorCartPole", 3), ("CartPole-v1", 1), ("CartPole-v1", 3)])
def test_worker_continues_from_its_state(env_id: str, num_envs: int, hash_state: Callable[[Any], str]) -> None:
    spec = PolicySpec("categorical", Leaf((4,)), ActionSpec(choices=(2,)), NetSpec(hidden=(4,)))
    flat = Weights(0, spec.build().to_flat())
    worker = GroupActor(make_env(env_id, num_envs), spec, seed=5)
    worker.sample(flat, 37, 0)
    state = worker.state_dict()
    expected = worker.sample(flat, 40, 1)
    other = GroupActor(make_env(env_id, num_envs), spec, seed=99)
    other.load_state_dict(state)
    result = other.sample(flat, 40, 1)
    assert all(torch.equal(a, b) for a, b in zip(expected.rollout[:7], result.rollout[:7], strict=True))
    assert pairs(expected.episodes) == pairs(result.episodes) and len(pairs(result.episodes)) > 0
    assert hash_state(worker.state_dict()) == hash_state(other.state_dict())


def test_an_episode_that_restarts_on_resume_starts_its_return_anew() -> None:
    """A Gymnasium vector environment restarts its episodes on resume; their first halves must not be counted in."""

    def make() -> VecEnv:
        return make_env(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"), 2)

    spec = PolicySpec("categorical", Leaf((4,)), ActionSpec(choices=(2,)), NetSpec(hidden=(4,)))
    worker = GroupActor(make(), spec, seed=5)
    worker.sample(Weights(0, spec.build().to_flat()), 5, 0)
    other = GroupActor(make(), spec, seed=5)
    other.load_state_dict(worker.state_dict())
    assert other.exactness() == "episode" and not torch.equal(other.obs, worker.obs)
    assert other.open_length.tolist() == [0, 0]


def test_slot_groups_see_different_streams() -> None:
    # Guards against: R6, randomness that the one seed does not fix, or workers and lanes that share a stream.
    spec = PolicySpec("categorical", Leaf((4,)), ActionSpec(choices=(2,)), NetSpec(hidden=(4,)))
    flat = Weights(0, spec.build().to_flat())
    rollouts = [
        GroupActor(make_env("TensorCartPole", 4), spec, seed, group).sample(flat, 10, 0).rollout
        for seed, group in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert torch.equal(rollouts[0].obs, rollouts[3].obs) and torch.equal(rollouts[0].action, rollouts[3].action)
    for other in rollouts[1:3]:
        assert not torch.equal(rollouts[0].obs[0], other.obs[0])
        assert not torch.equal(rollouts[0].action, other.action)


# ---- learner


def learner_and_worker(agent: str, config: AgentConfig, env_id: str, num_envs: int) -> tuple[Learner, GroupActor]:
    env = make_env(env_id, num_envs)
    learner = Learner(agent, config, env.spec, CPU, 0)
    return learner, GroupActor(env, learner.policy_spec(), 0)


@pytest.mark.parametrize("horizon", [1, 3, 8])
@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("updates_per_step", [1.0, 0.25, 0.1])
def test_updates_per_environment_step_are_constant(horizon: int, num_envs: int, updates_per_step: float) -> None:
    """Whatever is in the buffer: the ratio holds from the first update to the last, after the ring is full too."""
    # Guards against: U1, a number of updates that grows with the buffer.
    config = DQNConfig(
        hidden=(4,),
        batch_size=2,
        buffer_size=40,
        learning_starts=20,
        updates_per_step=updates_per_step,
        horizon=horizon,
    )
    learner, worker = learner_and_worker("dqn", config, "TensorCartPole", num_envs)
    for seq in range(100 // (horizon * num_envs)):
        learner.update([worker.sample(learner.weights(), horizon, seq)])
        steps = (seq + 1) * horizon * num_envs
        assert learner.env_steps == steps
        assert learner.num_updates() == int(max(0, steps - 20) * updates_per_step)


def test_no_update_and_no_metric_before_learning_starts() -> None:
    config = SACConfig(hidden=(4,), batch_size=2, buffer_size=100, learning_starts=10)
    learner, worker = learner_and_worker("sac", config, "TensorPendulum", 2)
    before = learner.weights().flat
    for seq in range(5):
        assert learner.update([worker.sample(learner.weights(), 1, seq)]) == {}
    assert torch.equal(learner.weights().flat[:-1], before[:-1])  # all but the share of random actions
    assert learner.update([worker.sample(learner.weights(), 1, 5)]) != {}
    assert learner.num_updates() == 2


def test_weights_are_a_numbered_copy() -> None:
    learner, worker = learner_and_worker("ppo", PPOConfig(hidden=(4,)), "TensorCartPole", 2)
    old = learner.weights()
    kept = old.flat.clone()
    for seq in range(2):
        learner.update([worker.sample(learner.weights(), 8, seq)])
    assert torch.equal(old.flat, kept)
    assert (old.version, learner.weights().version) == (0, 2)


def test_fragments_are_joined_by_slot_group_and_not_by_arrival() -> None:
    config = PPOConfig(hidden=(4,), num_epochs=2, batch_size=8)
    results = []
    for order in ([0, 1], [1, 0]):
        learner, _ = learner_and_worker("ppo", config, "TensorCartPole", 2)
        workers = [GroupActor(make_env("TensorCartPole", 2), learner.policy_spec(), 0, group) for group in (0, 1)]
        parts = [worker.sample(learner.weights(), 8, 0) for worker in workers]
        learner.update([parts[i] for i in order])
        assert learner.env_steps == 32
        results.append(learner.weights().flat)
    assert torch.equal(*results)


def test_reward_scale_is_for_learning_and_not_for_reporting() -> None:
    config = DQNConfig(hidden=(4,), buffer_size=100, reward_scale=0.25)
    learner, worker = learner_and_worker("dqn", config, "TensorCartPole", 2)
    fragment = worker.sample(learner.weights(), 30, 0)
    learner.update([fragment])
    assert fragment.rollout.reward.unique().tolist() == [1.0]
    assert isinstance(learner.memory, Replay)
    assert learner.memory.ring.reward[: learner.memory.ring.filled].unique().tolist() == [0.25]
    assert np.array_equal(fragment.episodes.returns, fragment.episodes.lengths)


def test_reward_clip_is_for_learning_and_applies_to_single_steps() -> None:
    config = DQNConfig(hidden=(4,), buffer_size=100, reward_clip=0.5, n_step=3, gamma=1.0)
    learner, worker = learner_and_worker("dqn", config, "TensorCartPole", 2)
    fragment = worker.sample(learner.weights(), 30, 0)
    learner.update([fragment])
    assert isinstance(learner.memory, Replay)
    sums = learner.memory.draw().reward
    assert set(sums.tolist()) <= {0.5, 1.0, 1.5} and 1.5 in sums  # of up to three steps
    assert np.array_equal(fragment.episodes.returns, fragment.episodes.lengths)


def test_a_replay_agent_normalises_observations() -> None:
    # Guards against: P6, observation normalisation that is dead, partial or lost on resume.
    config = DQNConfig(hidden=(4,), buffer_size=100, normalize_obs=True)
    learner, worker = learner_and_worker("dqn", config, "TensorCartPole", 2)
    fragment = worker.sample(learner.weights(), 30, 0)
    learner.update([fragment])
    mean = learner.agent.policy.norm.mean
    torch.testing.assert_close(mean, fragment.rollout.obs.flatten(0, 1).mean(0))
    assert isinstance(learner.memory, Replay)
    assert torch.equal(learner.memory.ring.obs[:30], fragment.rollout.obs)  # what is stored is what was seen


@pytest.mark.parametrize("agent", SINGLE_AGENTS)
def test_learner_continues_from_its_state(agent: str, hash_state: Callable[[Any], str]) -> None:
    # Guards against: R2, a resumed run that differs from an uninterrupted one, or an optimiser that holds dead
    # parameters.
    env_id = "TensorCartPole" if "discrete" in find_agent(agent).agent.actions else "TensorPendulum"
    kind = find_agent(agent).config
    small: dict[str, Any] = {"hidden": (4,), "normalize_obs": True, "lr_schedule": "linear", "batch_size": 8}
    if find_agent(agent).agent.memory == "replay":
        small |= {"buffer_size": 30, "learning_starts": 8, "n_step": 2}
    learner, worker = learner_and_worker(agent, kind(**small), env_id, 2)
    fragments: list[Fragment] = []
    for seq in range(10):
        fragments.append(worker.sample(learner.weights(), 4, seq))
        learner.update(fragments[-1:])
        if seq == 4:
            other = Learner(agent, kind(**small), worker.env.spec, CPU, 77)
            other.load_state_dict(learner.state_dict())
            assert hash_state(other.state_dict()) == hash_state(learner.state_dict())
    for fragment in fragments[5:]:
        other.update([fragment])
    assert hash_state(other.state_dict()) == hash_state(learner.state_dict())
    assert (other.env_steps, other.version) == (80, 10)


def test_rollout_has_the_documented_fields() -> None:
    assert Rollout._fields == ("obs", "action", "reward", "terminated", "truncated", "next_obs", "kept", "carry")
