"""Environments: one Gymnasium environment with the facts an agent needs, and N of them side by side."""

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

RETIRED = {
    "Pendulum-v0": "Pendulum-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
}
"""Names in older documents -> the version that Gymnasium has today."""


class GymEnv(gym.Wrapper):
    """An environment with vectors as states, and with actions that are numbers 0, 1, ... or vectors in [-1, 1]."""

    def __init__(self, env: str | gym.Env, target_return: float | None = None):
        if isinstance(env, str):
            if env in RETIRED:
                warnings.warn(f"{env} is retired, {RETIRED[env]} takes its place", stacklevel=2)
            env = gym.make(RETIRED.get(env, env), disable_env_checker=True)
        super().__init__(env)
        spec, space = env.spec, env.action_space
        self.env_name = spec.id if spec else type(env).__name__
        self.max_step = spec.max_episode_steps if spec else getattr(env, "max_step", None)
        threshold = spec.reward_threshold if spec else None
        self.target_return = next((x for x in (target_return, threshold) if x is not None), float("inf"))
        if len(env.observation_space.shape or ()) != 1:
            raise ValueError(f"{self.env_name} has states {env.observation_space}; HelloWorld needs vectors")
        self.state_dim = env.observation_space.shape[0]
        self.if_discrete = isinstance(space, gym.spaces.Discrete)
        if not self.if_discrete and not (isinstance(space, gym.spaces.Box) and space.is_bounded()):
            raise ValueError(f"{self.env_name} has actions {space}; HelloWorld needs Discrete, or a Box with bounds")
        self.action_dim = int(space.n) if self.if_discrete else space.shape[0]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if not self.if_discrete:  # PPO draws any number: clip it to [-1, 1], then to the range of the environment
            low, high = self.env.action_space.low, self.env.action_space.high
            action = low + (high - low) * (action.clip(-1, 1) + 1) / 2
        return self.env.step(action)


class PendulumEnv(GymEnv):
    """The pendulum of the quickstart; its best mean return is about -150."""

    def __init__(self, gym_env_name: str = "Pendulum-v1", target_return: float = -200):
        super().__init__(gym_env_name, target_return)


def build_env(env: Any, env_args: dict | None = None) -> GymEnv:
    """A new environment from an id, an environment (of the same id), `gym.make`, or your class with its arguments."""
    env_args = env_args or {}
    target_return = env_args.get("target_return")
    if env is gym.make:
        env = env_args["env_name"]
    elif isinstance(env, gym.Env):
        if env.spec is None:
            raise ValueError(f"{env} has no id: pass its class and a dict of its arguments instead")
        env, target_return = env.spec.id, getattr(env, "target_return", target_return)
    elif callable(env):
        env = env(**env_args)
    elif not isinstance(env, str):
        raise ValueError(f'{env!r} is no environment: pass an id such as "CartPole-v1", a gymnasium.Env or its class')
    return env if isinstance(env, GymEnv) else GymEnv(env, target_return)


def get_gym_env_args(env: gym.Env | str, if_print: bool = True) -> dict[str, Any]:
    """The facts of an environment as a dict, which is also the `env_args` of `Config(agent, gym.make, env_args)`."""
    names = ("env_name", "max_step", "state_dim", "action_dim", "if_discrete", "target_return")
    found = build_env(env)
    env_args = {"num_envs": 1, **{name: getattr(found, name) for name in names}}
    if if_print:
        print("env_args = {" + "".join(f"\n    {k!r}: {v!r}," for k, v in env_args.items()) + "\n}")
    return env_args


class VecEnv:
    """N environments. An environment whose episode has ended starts the next one by itself."""

    def __init__(self, make_env: Callable[[], gym.Env], num_envs: int, seed: int):
        self.num_envs, self.envs = num_envs, [make_env() for _ in range(num_envs)]
        self.state_NS = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)])  # act on this
        self.returns: list[float] = []  # of the episodes that have ended
        self.return_N = np.zeros(num_envs)  # so far in the episodes that have not

    def step(self, action_N: np.ndarray) -> tuple[np.ndarray, ...]:
        """next_state_NS, reward_N, terminated_N, truncated_N.

        `next_state_NS` is what the action led to, also at the end of an episode. What to act on next is `state_NS`,
        where an ended episode is replaced by the first state of the next one.
        """
        rows = [env.step(action) for env, action in zip(self.envs, action_N, strict=True)]
        next_state_NS, reward_N, terminated_N, truncated_N = (np.array(x) for x in list(zip(*rows, strict=True))[:4])
        self.return_N += reward_N
        self.state_NS = next_state_NS.copy()
        for i in np.flatnonzero(terminated_N | truncated_N):
            self.state_NS[i], _ = self.envs[i].reset()
            self.returns.append(float(self.return_N[i]))
            self.return_N[i] = 0.0
        return next_state_NS, reward_N, terminated_N, truncated_N
