"""Stacks of the newest frames of any ``VecEnv``, so that a policy sees how things in a picture move.

Axes: N environment lanes, K frames of a stack.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import tree
from ..errors import SpecError
from ..tree import Tree
from ..types import EnvSpec, Leaf, Obs, State, Step
from .vec_env import Exactness, VecEnv


class FrameStackVecEnv(VecEnv):
    """Every picture that the policy sees gets an axis of K frames in front, oldest first; a first frame is repeated."""

    def __init__(self, env: VecEnv, num_frames: int):
        self.env, self.device = env, env.device
        self.spec = stacked_spec(env.spec, num_frames)
        self._stacks: dict[str, Tensor] = {}  # path of a picture -> its newest frames [N, K, ...]
        self._paths = [path for path, leaf in tree.named_leaves(self.spec.obs).items() if leaf.stack > 1]
        self._num_frames = num_frames

    def reset(self, seed: int) -> Tree:
        return self._begin(self.env.reset(seed))

    def step(self, action: Tensor) -> Step:
        step = self.env.step(action)
        newest = self._pictures(step.next_obs)
        successor = {path: next_stack(stack, newest[path]) for path, stack in self._stacks.items()}
        next_obs = with_parts(step.next_obs, successor)
        ended = step.terminated | step.truncated
        # Reading a flag is free on a CPU and saves copies; on another device it would wait for the device.
        if self.device.type == "cpu" and not ended.any():
            self._stacks = successor
            return step._replace(obs=next_obs, next_obs=next_obs)
        self._stacks = self._restarted(step.obs, ended, successor)
        return step._replace(obs=with_parts(step.obs, self._stacks), next_obs=next_obs)

    def reset_lanes(self, lanes: Tensor) -> Tree | None:
        obs = self.env.reset_lanes(lanes)
        if obs is None:
            return None
        self._stacks = self._restarted(obs, lanes, self._stacks)
        return with_parts(obs, self._stacks)

    def _begin(self, obs: Tree) -> Tree:
        self._stacks = {path: first_stack(x, self._num_frames) for path, x in self._pictures(obs).items()}
        return with_parts(obs, self._stacks)

    def _restarted(self, obs: Tree, lanes: Tensor, stacks: dict[str, Tensor]) -> dict[str, Tensor]:
        """``stacks`` that begin anew with the pictures of ``obs`` where ``lanes`` [N] is true."""
        first = {path: first_stack(x, self._num_frames) for path, x in self._pictures(obs).items()}
        return {path: tree.where(lanes, first[path], stack) for path, stack in stacks.items()}

    def _pictures(self, obs: Tree) -> dict[str, Tensor]:
        found = tree.named_leaves(obs)
        return {path: found[path] for path in self._paths}

    # ---- what the environment itself decides

    def state_dict(self) -> State:
        return {"env": self.env.state_dict(), "frames": [self._stacks[path] for path in self._paths]}

    def load_state_dict(self, state: State) -> Tree:
        obs = self.env.load_state_dict(state["env"])
        saved = {path: x.to(self.device) for path, x in zip(self._paths, state["frames"], strict=True)}
        # A lane whose newest frame is not the saved one has begun a new episode, too.
        changed = tree.rows_differ(self._pictures(obs), tree.map_leaves(lambda x: x[:, -1], saved))
        self._stacks = self._restarted(obs, changed | self.env.restarted_lanes(), saved)
        return with_parts(obs, self._stacks)

    @property
    def exactness(self) -> Exactness:
        return self.env.exactness

    def restarted_lanes(self) -> Tensor:
        return self.env.restarted_lanes()

    def close(self) -> None:
        self.env.close()


def first_stack(picture: Tensor, num_frames: int) -> Tensor:
    """The stack [N, K, ...] at the beginning of an episode: its first frame [N, ...] repeated."""
    return picture.unsqueeze(1).repeat_interleave(num_frames, 1)


def next_stack(stack: Tensor, picture: Tensor) -> Tensor:
    """The stack [N, K, ...] without its oldest frame and with ``picture`` [N, ...] as the newest."""
    return torch.cat([stack[:, 1:], picture.unsqueeze(1)], 1)


def stack_frames(obs: Tree, spec: Tree, carry: dict[str, Any]) -> Tree:
    """Observations with the stacks that the leaves of ``spec`` name, for a caller that steps an environment itself.

    ``carry`` keeps the stacks under "frames"; it is empty at the beginning of an episode.
    """
    before, stacks = carry.get("frames", {}), {}
    parts = tree.named_leaves(obs)
    for path, leaf in tree.named_leaves(spec).items():
        if leaf.stack > 1:
            picture = parts[path]
            stacks[path] = next_stack(before[path], picture) if path in before else first_stack(picture, leaf.stack)
    if not stacks:
        return obs
    carry["frames"] = stacks
    return with_parts(obs, stacks)


def with_parts(obs: Tree, parts: dict[str, Tensor]) -> Tree:
    """``obs`` with other tensors at some paths."""
    all_parts = iter([parts.get(path, part) for path, part in tree.named_leaves(obs).items()])
    return tree.map_leaves(lambda _: next(all_parts), obs)


def stacked_spec(spec: EnvSpec, num_frames: int) -> EnvSpec:
    """``spec`` with stacks in place of the pictures that the policy sees."""
    seen = spec.obs.seen if isinstance(spec.obs, Obs) else spec.obs
    if spec.num_agents is not None:
        raise SpecError(
            f"environment {spec.name!r} has a team of agents, and frame_stack={num_frames} is for one agent"
        )
    if not any(leaf.is_picture for leaf in tree.leaves(seen)):
        raise SpecError(
            f"environment {spec.name!r} shows no picture (uint8 or bool with two axes or more), so there is nothing"
            f" to stack; leave frame_stack={num_frames} out"
        )
    stacked = tree.map_leaves(lambda leaf: _stacked(leaf, num_frames), seen)
    return replace(spec, obs=spec.obs._replace(seen=stacked) if isinstance(spec.obs, Obs) else stacked)


def _stacked(leaf: Leaf, num_frames: int) -> Leaf:
    return Leaf((num_frames, *leaf.shape), leaf.dtype, num_frames) if leaf.is_picture else leaf
