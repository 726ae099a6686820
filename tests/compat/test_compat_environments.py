"""Environments of documented scripts."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from samples import Line, Point, short

import elegantrl
from elegantrl import (
    AgentPPO,
    ChasingVecEnv,
    Config,
    build_env,
    kwargs_filter,
    train_agent,
)
from elegantrl.envs import TensorEnv
from elegantrl.errors import ConfigError, SpecError
from elegantrl.types import ActionSpec


def test_build_env_from_anything():
    for env in ("CartPole-v1", gym.make("CartPole-v1"), build_env("CartPole-v1")):
        built = build_env(env)
        assert (built.env_name, built.num_envs, built.max_step) == ("CartPole-v1", 1, 500)
        assert (built.state_dim, built.action_dim, built.if_discrete) == (4, 2, True)
        assert built.target_return == 475.0
    assert build_env(Line).target_return == 19.0
    assert build_env(Line(start=2.0)).reset() == 2.0
    assert build_env(Line, {"start": 3.0}).reset() == 3.0
    assert build_env(lambda: Line(start=4.0)).reset() == 4.0


def test_a_built_env_takes_actions_in_the_unit_range():
    env = build_env(inner := Point())
    env.reset()
    env.step(np.array([1.0]))
    assert inner.last_action == 3.0
    env.step([-0.5])
    assert inner.last_action == -1.5


def test_a_built_env_tells_a_cut_from_an_end():
    env = build_env(Line)
    with pytest.raises(ConfigError, match="begins with reset"):
        env.step(1)
    env.reset()
    steps = [env.step(1) for _ in range(20)]
    assert [done for _, _, done, _ in steps] == [False] * 19 + [True]
    assert steps[-1][3] == {"TimeLimit.truncated": True}
    assert steps[-1][0] == pytest.approx(2.0)  # the last state, not the first of the next episode
    with pytest.raises(ConfigError, match="after done"):
        env.step(1)
    assert env.reset() == 0.0


def test_a_custom_env_with_five_values_and_one_with_a_time_limit():
    # Guards against: E10, environments with four values per step that are refused or lose their time limit.
    class Five(Line):
        def step(self, action):
            state, reward, _, info = super().step(action)
            return state, reward, self.steps == 3, self.steps >= 3, info

    class Four(Line):
        def step(self, action):
            state, reward, _, _ = super().step(action)
            return state, reward, self.steps == 3, {"TimeLimit.truncated": True}

    for kind, info in ((Five, {}), (Four, {"TimeLimit.truncated": True})):
        env = build_env(kind)
        env.reset()
        assert [env.step(0)[2] for _ in range(2)] == [False, False]
        assert env.step(0)[2:] == (True, info)


def test_resets_differ_and_scripts_repeat():
    env, again = build_env("CartPole-v1"), build_env("CartPole-v1")
    first, second = env.reset(), env.reset()
    assert not np.array_equal(first, second)
    assert np.array_equal(again.reset(), first) and np.array_equal(again.reset(), second)


def test_a_built_env_with_lanes():
    env = build_env("Pendulum-v1", {"num_envs": 3})
    state = env.reset()
    assert state.shape == (3, 3) and env.num_envs == env.env_num == 3
    state, reward, done, _ = env.step(torch.zeros(3, 1))
    assert state.shape == (3, 3) and reward.shape == done.shape == (3,)


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1", "TensorPendulum"])
def test_a_built_env_with_more_than_64_lanes(name):
    """Guards against: R15, vector environments that end at 64 lanes."""
    env = build_env(name, {"num_envs": 70})
    state = env.reset()
    action = torch.zeros(70, dtype=torch.int64) if env.if_discrete else torch.zeros(70, env.action_dim)
    after, reward, done, _ = env.step(action)
    assert state.shape == after.shape == (70, env.state_dim) and reward.shape == done.shape == (70,)
    assert (after != state).any(1).all() and len({tuple(row) for row in state.tolist()}) == 70
    env.close()


class Slope(TensorEnv):
    """An environment as they are written for GPUs: all lanes in one tensor, ``num_envs`` and ``device`` by keyword."""

    obs_dim, action, max_episode_steps = 1, ActionSpec(dim=1), 9

    def __init__(self, num_envs=1, device="cpu", incline=1.0):
        self.incline = incline
        super().__init__(num_envs, device)

    def initial(self, num_rows):
        return torch.zeros(num_rows, 1, device=self.device)

    def dynamics(self, state, action):
        state = state + action - self.incline
        return state, -state[:, 0], torch.zeros_like(state[:, 0], dtype=torch.bool)


def test_an_environment_written_for_gpus_gets_its_keywords_and_runs_on_the_cpu():
    """Guards against: E8, keywords that never arrive, and environments that need CUDA."""
    env = build_env(Slope, {"num_envs": 5, "incline": 0.25}, gpu_id=0)
    assert (env.num_envs, env.state_dim, env.action_dim, env.max_step) == (5, 1, 1, 9)
    env.reset()
    state, reward, done, _ = env.step(torch.ones(5, 1))
    assert state.tolist() == [[0.75]] * 5 and reward.tolist() == [-0.75] * 5 and not done.any()
    args = Config(AgentPPO, Slope, {"num_envs": 5, "incline": 0.25})
    assert args.run_config().env.kwargs == {"incline": 0.25} and args.num_envs == 5
    summary = train_agent(short(args)).summary
    assert summary["num_envs"] == 5 and summary["episodes"] > 0
    with pytest.raises(ConfigError, match="no use for 'inclin'; did you mean 'incline'"):
        build_env(Slope, {"inclin": 0.25})


def test_a_step_steps_once_and_a_reset_resets_once():
    """Guards against: E9, a wrapper that steps and then resets once more for the state it returns."""
    calls = []

    class Told(Line):
        def reset(self):
            calls.append("reset")
            return super().reset()

        def step(self, action):
            calls.append("step")
            return super().step(action)

    env = build_env(Told)
    calls.clear()
    first = env.reset()
    state, _, _, _ = env.step(1)
    assert calls == ["reset", "step"]
    assert state == pytest.approx(first + 0.1)


@pytest.mark.parametrize("name", ["IsaacVecEnv", "IsaacOneEnv"])
def test_isaac_names_fail_with_one_sentence(name):
    """Guards against: E9, an import error that speaks of somebody else's package."""
    env = getattr(elegantrl, name)
    sentence = f"^{name} needs NVIDIA Isaac Gym and IsaacGymEnvs, .* (No module named 'isaacgym'); import isaacgym in"
    sentence = sentence.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ImportError, match=sentence):
        env("Ant")
    with pytest.raises(ImportError, match=sentence):
        elegantrl.Arguments(elegantrl.AgentPPO, env_func=env, env_args={"env_num": 8, "env_name": "Ant"})
    assert "isaacgym" not in sys.modules


def test_seeds_reach_an_environment_of_either_interface():
    """Guards against: E6, a wrapper that keeps the seed to itself."""
    seen = []

    class Newer(Line):
        def reset(self, seed=None):
            seen.append(seed)
            return super().reset()

    class Older(Line):
        def seed(self, seed):
            seen.append(seed)

    for kind in (Newer, Older):
        env = build_env(kind)
        seen.clear()  # of the reset that finds out whether the environment gives masks
        for seed in (3, 4, 3):
            env.reset(seed)
        assert len(seen) == 3 and seen[0] == seen[2] != seen[1] and None not in seen


def test_rendering_where_it_is_asked_for():
    env = build_env("CartPole-v1", {"render_mode": "rgb_array"})
    env.reset()
    assert env.render().ndim == 3
    env.close()


def test_chasing_vec_env():
    # Guards against: K4, a documented call form that does not run.
    # Guards against: E8, environments that need CUDA, or whose keywords never arrive.
    env = ChasingVecEnv(dim=2, env_num=64, device_id=-1)
    assert (env.env_num, env.state_dim, env.action_dim, env.max_step) == (64, 8, 2, 100)
    state = env.reset()
    for _ in range(101):
        state, reward, done, _ = env.step(torch.ones(64, 2))
    assert state.shape == (64, 8) and reward.shape == done.shape == (64,)
    assert ChasingVecEnv().num_envs == 4096
    args = Config(AgentPPO, ChasingVecEnv, {"num_envs": 4, "target_return": 3.0, "device_id": -1})
    assert (args.num_envs, args.target_return) == (4, 3.0)
    assert Config(AgentPPO, env).num_envs == 64
    with pytest.raises(ConfigError, match="did you mean 'dim'"):
        Config(AgentPPO, ChasingVecEnv, {"dims": 3})


def test_an_environment_that_says_too_little():
    class Bare:
        def reset(self): ...
        def step(self, action): ...

    with pytest.raises(SpecError, match="neither an action_space nor the attribute state_dim"):
        build_env(Bare)

    class Lanes(Line):
        env_num = 8

    with pytest.raises(SpecError, match=r"reset returned states of shape \(1,\), expected \(8, 1\)"):
        build_env(Lanes()).reset()


def test_kwargs_filter():
    assert kwargs_filter(Line, {"start": 1, "other": 2}) == {"start": 1}
