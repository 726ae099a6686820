"""Tensor environments: equal to Gymnasium's step by step, rewards by hand, fresh state after a reset."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from elegantrl.envs import ChasingVecEnv, DoorsVecEnv, TensorEnv, check_env, make_env
from elegantrl.types import ActionSpec, Leaf, Obs


def start_at(env: TensorEnv, state: list[list[float]]) -> None:
    env.reset(0)
    env.load_state_dict({**env.state_dict(), "state": torch.tensor(state)})


def test_cartpole_equals_gymnasium_over_whole_episodes() -> None:
    env = make_env("TensorCartPole")
    reference = gym.make("CartPole-v1")
    actions = np.random.default_rng(0).integers(2, size=2000)
    obs = env.reset(0)
    reference.reset(seed=0)
    reference.unwrapped.state = obs[0].double().numpy()
    ends = 0
    for action in actions:
        step = env.step(torch.tensor([action]))
        expected, reward, terminated, truncated, _ = reference.step(action)
        # float32 against float64: the pole is unstable, so a rounding error grows within an episode.
        torch.testing.assert_close(step.next_obs[0], torch.from_numpy(expected), atol=2e-4, rtol=1e-4)
        assert (step.reward.item(), step.terminated.item(), step.truncated.item()) == (reward, terminated, truncated)
        if terminated:
            ends += 1
            reference.reset()
            reference.unwrapped.state = step.obs[0].double().numpy()
    assert ends > 50


def test_cartpole_is_cut_after_500_steps_and_not_before() -> None:
    env = make_env("TensorCartPole")
    obs = env.reset(1)
    for index in range(1, 501):
        # Push towards the side to which the pole falls, with some weight on the cart: this balances for ever.
        lean = obs @ torch.tensor([0.5, 1.0, 10.0, 3.0])
        step = env.step((lean > 0).long())
        assert not step.terminated.any()
        assert step.truncated.item() == (index == 500)
        obs = step.obs


def test_pendulum_equals_gymnasium_over_whole_episodes() -> None:
    # Guards against: E6, a wrapper that changes rewards unannounced or keeps the seed to itself.
    env = make_env("TensorPendulum", 2)
    reference = gym.make("Pendulum-v1")
    actions = torch.rand(200, 2, 1, generator=torch.Generator().manual_seed(0)) * 3 - 1.5
    env.reset(0)
    reference.reset(seed=0)
    reference.unwrapped.state = env.state_dict()["state"][1].double().numpy()
    for action in actions:
        step = env.step(action)
        expected, reward, terminated, truncated, _ = reference.step(2 * action[1].double().numpy())
        torch.testing.assert_close(step.next_obs[1], torch.from_numpy(expected), atol=5e-3, rtol=1e-3)
        assert step.reward[1].item() == pytest.approx(reward, abs=2e-2)
        assert (step.terminated[1].item(), step.truncated[1].item()) == (terminated, truncated)
    assert step.truncated.all()


def test_pendulum_one_step_by_hand() -> None:
    env = make_env("TensorPendulum")
    start_at(env, [[math.pi / 2, 1.0]])
    step = env.step(torch.tensor([[0.5]]))
    assert step.reward.item() == pytest.approx(-((math.pi / 2) ** 2 + 0.1 + 0.001))
    speed = 1.0 + (15.0 + 3.0) * 0.05
    angle = math.pi / 2 + 0.05 * speed
    assert step.next_obs[0].tolist() == pytest.approx([math.cos(angle), math.sin(angle), speed], abs=1e-6)


def test_cartpole_ends_beyond_its_limits_only() -> None:
    env = make_env("TensorCartPole", 4)
    start_at(env, [[2.39, 0, 0, 0], [2.41, 0, 0, 0], [0, 0, 0.2094, 0], [0, 0, -0.2095, 0]])
    assert env.step(torch.zeros(4, dtype=torch.int64)).terminated.tolist() == [False, True, False, True]


def test_chasing_one_step_by_hand() -> None:
    env = make_env("Chasing", 2)
    #                 chaser      velocity    target      drift
    start_at(env, [[0, 0, 0.1, 0, 4, 0, 0, 0.0], [0, 0, 0, 0, 1.02, 0, 0, 0]])
    step = env.step(torch.tensor([[1.0, 0.0], [0.5, 0.0]]))
    velocity = 0.8 * 0.1 + 0.2 * 0.4
    assert step.next_obs[0].tolist() == pytest.approx([velocity, 0, velocity, 0, 4, 0, 0, 0])
    assert step.reward.tolist() == pytest.approx([velocity - 0.01, 0.04 - 0.0025], abs=1e-6)
    assert step.terminated.tolist() == [False, True]


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_chasing_has_no_reward_spike_after_a_reset(dim: int) -> None:
    """No distance outlives its episode: a reward is what one step can win, above all in the step after a reset."""
    # Guards against: E3, state that outlives its episode, a time limit that is death, a Python loop over lanes.
    env = ChasingVecEnv(64, dim=dim, max_episode_steps=20)
    obs = env.reset(0)
    fastest = 0.4 * math.sqrt(dim) + 0.1
    resets = 0
    for _ in range(60):
        chaser, _, target, _ = obs.chunk(4, dim=1)
        step = env.step(torch.sign(target - chaser))
        resets += int((step.terminated | step.truncated).sum())
        assert step.reward.abs().max() <= fastest + 0.01 * dim
        obs = step.obs
    assert resets >= 64


def test_chasing_limits_are_truncations_and_catches_are_terminations() -> None:
    # Guards against: E3, state that outlives its episode, a time limit that is death, a Python loop over lanes.
    env = ChasingVecEnv(8, max_episode_steps=10)
    env.reset(0)
    for _ in range(9):
        step = env.step(torch.zeros(8, 2))
        assert not (step.terminated | step.truncated).any()
    step = env.step(torch.zeros(8, 2))
    assert step.truncated.all() and not step.terminated.any()
    distance = torch.linalg.vector_norm(step.obs[:, :2] - step.obs[:, 4:6], dim=1)
    assert ((distance - 8).abs() < 1).all(), "the next episode starts from afar"


@pytest.mark.parametrize("name", ["TensorCartPole", "TensorPendulum", "Chasing"])
def test_a_step_takes_as_many_operations_for_many_lanes_as_for_two(name: str) -> None:
    """Guards against: E3, a Python loop over lanes."""

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for lanes in (2, 500):
        env = make_env(name, lanes, max_episode_steps=3)
        env.reset(0)
        action = (
            torch.zeros(lanes, dtype=torch.int64) if name == "TensorCartPole" else torch.zeros(lanes, env.action.dim)
        )
        with Count() as count:
            for _ in range(3):  # the last step resets every lane
                step = env.step(action)
        assert step.truncated.all()
        counts.append(count.calls)
    assert counts[0] == counts[1] > 0


class Reach(TensorEnv):
    """The smallest environment a user would write: a point walks on a line and must not leave it."""

    obs_dim = 1
    action = ActionSpec(dim=1)
    max_episode_steps = 6

    def initial(self, num_rows: int) -> Tensor:
        return torch.rand(num_rows, 1, generator=self.generator, device=self.device)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = state + action
        return state, -state[:, 0].abs(), state[:, 0].abs() > 2


def test_a_users_env_gets_limits_resets_and_successors_from_the_base() -> None:
    env = make_env(Reach, 3)
    assert env.spec.name == "Reach" and env.spec.max_episode_steps == 6
    check_env(env)
    obs = env.reset(0)
    step = env.step(torch.tensor([[5.0], [0.0], [-0.5]]))
    assert torch.equal(step.next_obs, obs + torch.tensor([[1.0], [0.0], [-0.5]])), "actions are clipped to [-1, 1]"
    step = env.step(torch.tensor([[1.0], [0.0], [0.0]]))
    assert step.terminated.tolist() == [True, False, False]
    assert 0 <= step.obs[0, 0] < 1 and step.next_obs[0, 0] > 2
    for _ in range(3):
        step = env.step(torch.zeros(3, 1))
        assert not step.truncated.any()
    step = env.step(torch.zeros(3, 1))
    assert step.truncated.tolist() == [False, True, True], "lane 0 began two steps later"


def test_resets_by_mask_and_by_rows_agree_on_what_they_keep() -> None:
    """The branch of other devices, run here: it draws more numbers but resets the same lanes."""
    env = make_env("TensorCartPole", 4)
    env.reset(0)
    state, elapsed = torch.randn(4, 4), torch.tensor([3, 4, 5, 6], dtype=torch.int32)
    done = torch.tensor([True, False, True, False])
    env.device = torch.device("meta")  # anything but the CPU
    env.initial = lambda num_rows: torch.full((num_rows, 4), 9.0)  # type: ignore[method-assign]
    obs = env._restart(state, elapsed, done, state)
    assert torch.equal(obs[~done], state[~done]) and (obs[done] == 9).all()
    assert env.state_dict()["elapsed"].tolist() == [0, 4, 0, 6]


def test_doors_open_with_one_key_each() -> None:
    env = DoorsVecEnv(2, num_doors=3, num_keys=9, num_fitting=2)
    fits, opens = env.fits_DK, env.opens_DK
    assert fits.sum(1).tolist() == [2, 2, 2] and opens.sum(1).tolist() == [1, 1, 1] and bool((fits | ~opens).all())
    assert set(DoorsVecEnv(20).reset(0).seen.argmax(1).tolist()) == {0, 1}
    env.reset(0)
    obs = env.load_state_dict({**env.state_dict(), "state": torch.zeros(2, 1, dtype=torch.int64)})
    assert torch.equal(obs.mask, fits[[0, 0]]) and obs.seen.argmax(1).tolist() == [0, 0]
    step = env.step(opens[0].nonzero()[0].expand(2))
    assert step.obs.seen.argmax(1).tolist() == [1, 1] and step.reward.tolist() == [1, 1]
    wrong, foreign = (fits[1] & ~opens[1]).nonzero()[0], (~fits[1]).nonzero()[0]
    step = env.step(torch.cat([wrong, foreign]))
    assert step.obs.seen.argmax(1).tolist() == [0, 1] and step.reward.tolist() == [-1, 0]
    last = env.step(torch.cat([opens[0].nonzero()[0], opens[1].nonzero()[0]]))
    last = env.step(torch.cat([opens[1].nonzero()[0], opens[2].nonzero()[0]]))
    assert last.terminated.tolist() == [False, True] and last.obs.seen.argmax(1).tolist()[0] == 2


def test_doors_without_masks_show_the_door_alone() -> None:
    assert make_env("Doors", 2, masks=False).spec.obs == Leaf((8,))
    assert make_env("Doors", 2).spec.obs == Obs(Leaf((8,)), Leaf((64,), "bool"))  # type: ignore[arg-type]


def test_positions_alone_are_those_of_the_whole_observation() -> None:
    for whole, part, indices in (
        ("CartPole-v1", "PositionOnlyCartPole-v1", [0, 2]),
        ("Pendulum-v1", "PositionOnlyPendulum-v1", [0, 1]),
    ):
        env, positions = make_env(whole, 1), make_env(part, 1)
        assert torch.equal(env.reset(3)[:, indices], positions.reset(3))
        for action in env.spec.action.random((30, 1), torch.Generator().manual_seed(0)):
            step, other = env.step(action), positions.step(action)
            assert torch.equal(step.next_obs[:, indices], other.next_obs) and torch.equal(step.reward, other.reward)
        assert positions.spec.max_episode_steps == env.spec.max_episode_steps
