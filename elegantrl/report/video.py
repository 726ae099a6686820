"""An episode of a trained policy as a video, drawn by the environment itself."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..envs import make_env
from ..envs.frame_stack import stack_frames
from ..envs.gymnasium import GymVecEnv
from ..envs.masks import MASK_KEY, mask_method
from ..envs.vec_env import raise_faults
from ..errors import ConfigError, SpecError
from ..store.trained import TrainedPolicy

FORMATS = (".gif", ".mp4")
MAX_STEPS = 10_000
TENSOR_FPS = 10.0


class Video(NamedTuple):
    """A recorded episode."""

    path: Path
    num_frames: int
    episode_return: float


def film_episode(policy: TrainedPolicy, path: Path, seed: int = 0, env: Any = None) -> Video:
    """Play one episode from ``seed``, write it to ``path`` (.mp4 or .gif), and return its results."""
    check_video_path(path)
    source, kwargs = policy.choose_env(env)
    kwargs = kwargs | {"frame_stack": 1}  # ``act`` stacks the frames
    lanes = make_env(source, 1, **kwargs)
    try:
        if hasattr(lanes, "draw"):
            return _film_tensors(policy, lanes, path, seed)
        if not isinstance(lanes, GymVecEnv):
            raise ConfigError(
                f"{lanes.spec.name} draws no pictures; --video needs an environment with render, or a tensor"
                f" environment with a method draw"
            )
        if not hasattr(source, "step"):  # an instance has a fixed mode
            lanes.close()
            lanes = make_env(source, 1, **kwargs, render_mode="rgb_array")
            assert isinstance(lanes, GymVecEnv)
        film = _film if lanes.spec.num_agents is None else _film_team
        return film(policy, lanes.envs[0], path, seed)
    finally:
        lanes.close()


def check_video_path(path: Path) -> None:
    """Refuse a file of another format, and a machine that cannot write videos, before anything is played."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--video {path} must end in one of {', '.join(FORMATS)}")
    try:
        import imageio  # type: ignore[import-not-found, import-untyped]  # noqa: F401

        if path.suffix.lower() == ".mp4":
            import imageio_ffmpeg  # type: ignore[import-not-found, import-untyped]  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"--video {path} needs {error.name}: pip install 'elegantrl[video]'") from None


def _film(policy: TrainedPolicy, env: Any, path: Path, seed: int) -> Video:
    obs, info = env.reset(seed=seed)
    carry: dict[str, Any] = {}
    mask_fn = mask_method(env) or (lambda: info.get(MASK_KEY))
    num_frames, total = 0, 0.0
    with _open_writer(path, float(env.metadata.get("render_fps") or 30)) as add_frame:
        for _ in range(MAX_STEPS):
            add_frame(_picture(env))
            num_frames += 1
            action = policy.act(obs, carry, mask=mask_fn() if policy.policy.has_mask else None)
            obs, reward, terminated, truncated, info = env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        add_frame(_picture(env))
    return Video(path, num_frames + 1, total)


def _film_team(policy: TrainedPolicy, lane: Any, path: Path, seed: int) -> Video:
    """An episode of a team, whose agents act by themselves (``envs.team_env.TeamLane``)."""
    names, carry = list(lane.action_spaces), dict[str, Any]()
    obs, _ = lane.reset(seed)
    num_frames, total = 0, 0.0
    metadata = getattr(lane.env, "metadata", None) or {}
    with _open_writer(path, float(metadata.get("render_fps") or 10)) as add_frame:
        for _ in range(MAX_STEPS):
            add_frame(_picture(lane.env))
            num_frames += 1
            seen = {name: x for name, x in zip(names, obs.seen, strict=True) if x is not None}
            masks = zip(names, obs.masks or (), strict=False)
            allowed = {name: mask for name, mask in masks if mask is not None and name in seen}
            taken = policy.act(seen, carry, mask=allowed if policy.policy.has_mask else None)
            obs, rewards, terminated, truncated, _ = lane.step([taken.get(name) for name in names])
            total += float(np.sum(rewards))
            if terminated or truncated:
                break
        add_frame(_picture(lane.env))
    return Video(path, num_frames + 1, total)


@torch.no_grad()
def _film_tensors(policy: TrainedPolicy, env: Any, path: Path, seed: int) -> Video:
    """An episode of a tensor environment with a method ``draw``. After its last step it shows the next episode, so
    there is no picture of the end."""
    obs, carry, memory = env.reset(seed), policy.policy.initial_carry(1), dict[str, Any]()
    num_frames, total, ended = 0, 0.0, False
    with _open_writer(path, TENSOR_FPS) as add_frame:
        while not ended and num_frames < MAX_STEPS:
            add_frame(env.draw())
            num_frames += 1
            action, carry = policy.policy.act(stack_frames(obs, policy.spec.obs, memory), carry)
            step = raise_faults(env, env.step(action))
            obs, total = step.obs, total + float(step.reward.sum())
            ended = bool(step.terminated | step.truncated)
    return Video(path, num_frames, total)


def _picture(env: Any) -> Any:
    picture = env.render() if hasattr(env, "render") else None
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.dtype != np.uint8:
        name = type(getattr(env, "unwrapped", env)).__name__
        raise SpecError(f"{name}.render gives no rgb array; it needs render_mode='rgb_array'")
    return picture


@contextmanager
def _open_writer(path: Path, fps: float) -> Iterator[Any]:
    """A function that adds a frame. The file gets its final name when it is complete."""
    import imageio.v2 as imageio

    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".tmp-elegantrl-{uuid.uuid4().hex}{path.suffix.lower()}")
    # Codecs need an even width and height; a GIF stores milliseconds per frame instead of frames per second.
    gif = path.suffix.lower() == ".gif"
    options: dict[str, Any] = {"duration": 1000 / fps, "loop": 0} if gif else {"fps": fps, "macro_block_size": 2}
    try:
        writer: Any
        with imageio.get_writer(tmp, mode="I", **options) as writer:
            yield writer.append_data
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)
