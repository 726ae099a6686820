"""CartPole and Pendulum of Gymnasium without velocities, which a policy with memory can infer from positions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv


class Observed(gym.ObservationWrapper[Any, Any, Any]):
    """Some entries of an observation that is a vector."""

    def __init__(self, env: gym.Env[Any, Any], indices: list[int]):
        super().__init__(env)
        space: Any = env.observation_space
        self.indices = indices
        self.observation_space = gym.spaces.Box(space.low[indices], space.high[indices], dtype=space.dtype)

    def observation(self, observation: Any) -> Any:
        return observation[self.indices]


def cart_pole(**kwargs: Any) -> gym.Env[Any, Any]:
    """The position of the cart and the angle of the pole."""
    return Observed(CartPoleEnv(**kwargs), [0, 2])


def pendulum(**kwargs: Any) -> gym.Env[Any, Any]:
    """Cosine and sine of the angle."""
    return Observed(PendulumEnv(**kwargs), [0, 1])


gym.register(
    "PositionOnlyCartPole-v1",
    f"{__name__}:cart_pole",
    max_episode_steps=500,
    reward_threshold=475.0,
    order_enforce=False,
)
gym.register("PositionOnlyPendulum-v1", f"{__name__}:pendulum", max_episode_steps=200, order_enforce=False)
