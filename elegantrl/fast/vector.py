"""Steps of Gymnasium's vector environments in fewer NumPy calls, which are most of the cost of a step at a few lanes.

Axes: N environment lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from ..envs.spaces import Array


def advance_cartpole(env: Any, action: Array) -> tuple[Array, Array]:
    """``CartPoleVectorEnv.step`` in half as many calls, with the same bits."""
    state, change = env.state, np.empty_like(env.state)
    change[::2] = state[1::2]  # position and angle move with their speeds
    _, _, angle, spin = state
    sin, cos = np.sin(angle), np.cos(angle)
    push = (action * (2 * env.force_mag) - env.force_mag + env.polemass_length * np.square(spin) * sin) / env.total_mass
    lever = env.length * (4 / 3 - env.masspole * np.square(cos) / env.total_mass)
    spin_rate = np.divide(env.gravity * sin - cos * push, lever, out=change[3])
    np.subtract(push, env.polemass_length * spin_rate * cos / env.total_mass, out=change[1])
    change *= env.tau
    change += state
    env.state = change
    env.steps += 1
    terminated: Array = np.abs(change[0]) > env.x_threshold
    terminated |= np.abs(change[2]) > env.theta_threshold_radians
    return terminated, env.steps >= env.max_episode_steps


ADVANCE: dict[type[Any], Callable[[Any, Array], tuple[Array, Array]]] = {CartPoleVectorEnv: advance_cartpole}
"""By Gymnasium's class: which lanes [N] ended and which ran out of time after actions [N]; no lane is reset."""
