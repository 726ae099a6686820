"""An episode of a trained policy as a video, drawn by the environment itself."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..envs import make_env
from ..envs.gymnasium import GymVecEnv
from ..envs.masks import MASK_KEY, mask_method
from ..errors import ConfigError, SpecError
from ..store.trained import TrainedPolicy

FORMATS = (".gif", ".mp4")
MAX_STEPS = 10_000


class Video(NamedTuple):
    """A recorded episode."""

    path: Path
    num_frames: int
    episode_return: float


def film_episode(policy: TrainedPolicy, path: Path, seed: int = 0, env: Any = None) -> Video:
    """Play one episode from ``seed``, write it to ``path`` (.mp4 or .gif), and return its results."""
    check_video_path(path)
    source, kwargs = policy.choose_env(env)
    if not hasattr(source, "step"):  # an instance has a fixed mode
        kwargs = {**kwargs, "render_mode": "rgb_array"}
    lanes = make_env(source, 1, **kwargs | {"frame_stack": 1})  # ``act`` stacks the frames
    try:
        if not isinstance(lanes, GymVecEnv):
            raise ConfigError(f"{lanes.spec.name} draws no pictures; --video needs a Gymnasium environment")
        return _film(policy, lanes.envs[0], path, seed)
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


def _picture(env: Any) -> Any:
    picture = env.render()
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.dtype != np.uint8:
        raise SpecError(f"{type(env.unwrapped).__name__}.render gives no rgb array; it needs render_mode='rgb_array'")
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
