"""Atari games of the Arcade Learning Environment with the usual preprocessing, by Gymnasium's own wrappers.

A step repeats its action for four frames and shows 84 x 84 grey pixels; an episode begins with up to 30 frames without
an action; policies see four observations at once. In training alone rewards are clipped to [-1, 1] and an episode ends
with a life. Keyword arguments of the environment change each of these: those of ``AtariPreprocessing``,
``clip_reward``, and ``preprocess=False`` for the game as it is.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, ClipReward

USUAL_FRAMES = 4

PREPROCESSING = set(inspect.signature(AtariPreprocessing).parameters) - {"env"}


def make_game(spec: Any, kwargs: dict[str, Any], training: bool) -> gym.Env[Any, Any]:
    """One game; evaluations play it to its end and count its own rewards, whatever ``kwargs`` say of training."""
    kwargs = dict(kwargs)
    if not kwargs.pop("preprocess", True):
        return gym.make(spec, disable_env_checker=True, **kwargs)
    ends_with_life = kwargs.pop("terminal_on_life_loss", True) and training
    clips = kwargs.pop("clip_reward", True) and training
    wrapping = {name: kwargs.pop(name) for name in PREPROCESSING & kwargs.keys()}
    # The wrapper reads the screen itself, so the game need not make pictures in colour.
    shows = {"obs_type": "grayscale"} if wrapping.get("grayscale_obs", True) else {}
    game = gym.make(spec, disable_env_checker=True, **{"frameskip": 1, **shows, **kwargs})
    preprocessing = AtariPreprocessing(game, **wrapping)
    env = LifePerEpisode(preprocessing, preprocessing) if ends_with_life else preprocessing
    return ClipReward(env, -1.0, 1.0) if clips else env


def usual_frames(kwargs: dict[str, Any]) -> int:
    return USUAL_FRAMES if kwargs.get("preprocess", True) else 1


class LifePerEpisode(gym.Wrapper[Any, Any, Any, Any]):
    """An episode ends with each life, and the reset after it goes on with the game until its last life is lost.

    ``AtariPreprocessing`` can end episodes so too, but would begin the game anew and never show what comes later.
    """

    def __init__(self, env: gym.Env[Any, Any], preprocessing: AtariPreprocessing):
        super().__init__(env)
        self.preprocessing = preprocessing
        self.lives, self.goes_on = 0, False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lost, self.lives = info["lives"] < self.lives, info["lives"]
        self.goes_on = lost and not (terminated or truncated)
        return obs, reward, terminated or lost, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.goes_on:
            obs, _, terminated, truncated, info = self.env.step(0)
        if not self.goes_on or terminated or truncated:
            obs, info = self.env.reset(seed=seed, options=options)
        self.lives, self.goes_on = self.preprocessing.ale.lives(), False
        return obs, info

    # A game outlives its episodes, so a resumed run needs its state.

    def get_state(self) -> dict[str, Any]:
        game: Any = self.unwrapped
        return {
            "game": game.ale.cloneState(include_rng=True).serialize(),
            "random": json.dumps(game.np_random.bit_generator.state),
            "screens": [np.array(screen) for screen in self.preprocessing.obs_buffer],
            "lives": self.lives,
            "goes_on": self.goes_on,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        from ale_py import ALEState

        game: Any = self.unwrapped
        game.ale.restoreState(ALEState(state["game"]))
        game.np_random.bit_generator.state = json.loads(state["random"])
        self.preprocessing.obs_buffer = state["screens"]
        self.lives, self.goes_on = state["lives"], state["goes_on"]
