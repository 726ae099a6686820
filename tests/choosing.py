"""Small environments with several choices at once and with masks. A forbidden action is an error."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from elegantrl.envs.tensor.base import TensorEnv
from elegantrl.types import ActionSpec, Leaf, Obs


class Levers(TensorEnv):
    """Two levers at once, of two and three positions; each has a right position at each time."""

    obs_dim, action, max_episode_steps = 3, ActionSpec(choices=(2, 3)), 7

    def initial(self, num_rows: int) -> Tensor:
        start = torch.randint(5, (num_rows, 1), generator=self.generator, device=self.device).float()
        return torch.cat([start, torch.zeros_like(start), torch.zeros_like(start)], 1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The state is (start, time, whether it ended)."""
        self.check(state, action)
        start, time, _ = state.unbind(1)
        sizes = torch.tensor(self.spec.action.choices)
        right = (start + time).long().unsqueeze(-1) % sizes
        reward = (action.reshape(len(state), -1) == right).float().mean(-1)
        ended = (start * 3 + time) % 11 == 9
        return torch.stack([start, time + 1, ended.float()], 1), reward, ended

    def check(self, state: Tensor, action: Tensor) -> None:
        """Every option exists."""
        assert ((action >= 0) & (action < torch.tensor(self.spec.action.choices))).all()


def allowed(state: Tensor, choices: tuple[int, ...]) -> Tensor:
    """A mask that changes with the state and leaves an option of every choice; at the end nothing is allowed."""
    start, time, ended = state.unbind(-1)
    parts = []
    for size in choices:
        option = torch.arange(size)
        phase = (start + 2 * time).unsqueeze(-1)
        parts.append(((phase + option * 3) % 5 < 2) | ((start + time).unsqueeze(-1) % size == option))
    return torch.cat(parts, -1) & (ended == 0).unsqueeze(-1)


class MaskedLevers(Levers):
    """Some positions are blocked."""

    obs = Obs(Leaf((3,)), Leaf((5,), "bool"))  # type: ignore[arg-type]

    def observe(self, state: Tensor) -> Obs:
        return Obs(state, allowed(state, self.spec.action.choices))

    def check(self, state: Tensor, action: Tensor) -> None:
        parts = torch.split(allowed(state, self.spec.action.choices), list(self.spec.action.choices), -1)
        options = action.reshape(len(state), -1).unbind(-1)
        for part, option in zip(parts, options, strict=True):
            assert part.gather(1, option.unsqueeze(1)).all(), "a forbidden action"


class MaskedLever(MaskedLevers):
    """One lever of four positions."""

    obs, action = Obs(Leaf((3,)), Leaf((4,), "bool")), ActionSpec(choices=(4,))  # type: ignore[arg-type]


class Corridor(gym.Env[Any, Any]):
    """A walk along cells 0 to 4; stepping off the end is forbidden."""

    observation_space: gym.Space[Any] = gym.spaces.Box(0, 4, (1,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Discrete(3)  # left, stay, right
    moves: ClassVar[tuple[int, ...]] = (-1, 0, 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(5)), 0
        return self.shown(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.free()[action], f"the forbidden action {action} at {self.place}"
        self.place += self.moves[action]
        self.time += 1
        return self.shown(), float(self.place == 4), False, self.time == 10, self.info()

    def shown(self) -> Any:
        return np.array([self.place], dtype=np.float32)

    def info(self) -> dict[str, Any]:
        return {}

    def free(self) -> Any:
        """The actions that may be taken."""
        return np.array([0 <= self.place + move <= 4 for move in self.moves])


class MethodCorridor(Corridor):
    """With the method that sb3-contrib's MaskablePPO calls."""

    def action_masks(self) -> Any:
        return self.free()


class InfoCorridor(Corridor):
    """The mask is part of the info."""

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.free().astype(np.int8)}


class DictCorridor(Corridor):
    """The mask is part of the observation, as in PettingZoo."""

    observation_space = gym.spaces.Dict(
        {"observation": Corridor.observation_space, "action_mask": gym.spaces.Box(0, 1, (3,), np.int8)}
    )

    def shown(self) -> Any:
        return {"observation": super().shown(), "action_mask": self.free().astype(np.int8)}


class ActionMasker(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that adds ``action_masks()``, as sb3-contrib's does."""

    def action_masks(self) -> list[bool]:
        return [bool(flag) for flag in self.env.unwrapped.free()]  # type: ignore[attr-defined]


def wrapped_corridor() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(ActionMasker(Corridor()), 8)
