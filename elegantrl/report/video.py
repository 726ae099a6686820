"""Episodes of a trained policy as a video, drawn by the environment itself.

Pillow writes GIFs, ffmpeg writes MP4 files (extra ``video``).
"""

from __future__ import annotations

import itertools
import math
import os
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..envs import make_env
from ..envs.frame_stack import stack_frames
from ..envs.gymnasium import GymVecEnv
from ..envs.masks import MASK_KEY, mask_method
from ..envs.vec_env import raise_faults
from ..errors import ConfigError, SpecError
from ..store.trained import TrainedPolicy
from .page import DEMO_FILES

FORMATS = (".gif", ".mp4")
MAX_STEPS = 10_000
"""Steps of an episode after which the next one begins."""
MAX_EPISODES = 1000
PAUSE_SECONDS = 0.5
"""How long the last picture of an episode stays."""
GIF_FPS = 25.0
"""Pictures per second of a GIF; viewers slow down GIFs with twice as many."""

Picture = NDArray[np.uint8]
Episode = Generator[Picture, None, float]
"""The pictures of an episode; it returns the return."""


class Video(NamedTuple):
    """Recorded episodes."""

    path: Path
    returns: tuple[float, ...]
    """The return of each episode; that of a team is the sum over its agents."""
    num_frames: int
    """Pictures that were drawn; a GIF leaves out some of a fast environment."""


def record(
    run: str | Path | TrainedPolicy,
    out: str | Path | None = None,
    *,
    episodes: int = 1,
    seed: int = 0,
    env: Any = None,
    allow_import: bool = False,
) -> Video:
    """Play episodes from ``seed``, ``seed + 1``, ... without exploration, and write them to one file.

    ``run`` is a run folder or a policy. ``out`` ends in .mp4 or .gif; by default it is ``demo.mp4`` in the run folder,
    or ``demo.gif`` if the extra ``video`` is not installed. ``env`` replaces the environment of the run;
    ``allow_import`` trusts a folder that names code by import path.
    """
    if not 1 <= episodes <= MAX_EPISODES:
        raise ConfigError(f"--episodes {episodes} is out of range: it must be >= 1 and <= {MAX_EPISODES}")
    if out is not None:
        check_path(Path(out))  # before anything is loaded
    policy = run if isinstance(run, TrainedPolicy) else TrainedPolicy.load(run, allow_import)
    path = policy.folder / DEMO_FILES[not can_write_mp4()] if out is None else Path(out)
    with without_display(), Stage(policy, env) as stage:
        film = Film(stage, episodes, seed)
        write = write_gif if path.suffix.lower() == ".gif" else write_mp4
        write_video(write, path, film.frames(), stage.fps)
    return Video(path, tuple(film.returns), film.num_frames)


@contextmanager
def without_display() -> Iterator[None]:
    """Draw in memory: SDL, which many environments use, need not look for a screen and warn if there is none."""
    name, before = "SDL_VIDEODRIVER", os.environ.get("SDL_VIDEODRIVER")
    os.environ.setdefault(name, "dummy")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def can_write_mp4() -> bool:
    return find_spec("imageio_ffmpeg") is not None


def check_path(path: Path) -> None:
    """Refuse a file of another format, and a machine that cannot write it."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {path} must end in one of {', '.join(FORMATS)}")
    if path.suffix.lower() == ".mp4" and not can_write_mp4():
        raise ConfigError(f"--out {path} needs ffmpeg: pip install 'elegantrl[video]', or write a .gif")


# ---- playing


class Film:
    """Several episodes one after the other."""

    def __init__(self, stage: Stage, episodes: int, seed: int):
        self.stage, self.seeds = stage, range(seed, seed + episodes)
        self.returns: list[float] = []
        self.num_frames = 0

    def frames(self) -> Iterator[Picture]:
        for seed in self.seeds:
            episode = self.stage.play(seed)
            picture = next(episode)
            while True:
                self.num_frames += 1
                yield picture
                try:
                    picture = next(episode)
                except StopIteration as end:
                    self.returns.append(end.value)
                    break
            yield from itertools.repeat(picture, round(PAUSE_SECONDS * self.stage.fps))


class Stage:
    """A policy in an environment that draws itself."""

    def __init__(self, policy: TrainedPolicy, env: Any):
        source, kwargs = policy.choose_env(env)
        kwargs = kwargs | {"frame_stack": 1}  # ``act`` stacks the frames
        self.policy, self.lanes = policy, make_env(source, 1, **kwargs)
        try:
            self.play, self.fps = self._choose(source, kwargs)
        except BaseException:
            self.lanes.close()
            raise

    def _choose(self, source: Any, kwargs: dict[str, Any]) -> tuple[Any, float]:
        """How an episode is played, and the pictures per second."""
        if hasattr(self.lanes, "draw"):
            return self._play_tensors, float(getattr(self.lanes, "frames_per_second", 10.0))
        if not isinstance(self.lanes, GymVecEnv):
            raise ConfigError(
                f"{self.lanes.spec.name} draws no pictures; a video needs an environment with render, or a tensor"
                f" environment with a method draw"
            )
        if not hasattr(source, "step"):  # an instance has a fixed mode
            self.lanes.close()
            self.lanes = make_env(source, 1, **kwargs, render_mode="rgb_array")
            assert isinstance(self.lanes, GymVecEnv)
        self.env: Any = self.lanes.envs[0]
        is_team = self.lanes.spec.num_agents is not None
        metadata = getattr(self.env.env if is_team else self.env, "metadata", None) or {}
        fps = float(metadata.get("render_fps") or (10 if is_team else 30))
        return (self._play_team if is_team else self._play), fps

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.lanes.close()

    def _play(self, seed: int) -> Episode:
        policy, env = self.policy, self.env
        obs, info = env.reset(seed=seed)
        carry: dict[str, Any] = {}
        mask_fn = mask_method(env) or (lambda: info.get(MASK_KEY))
        total = 0.0
        yield picture_of(env)
        for _ in range(MAX_STEPS):
            action = policy.act(obs, carry, mask=mask_fn() if policy.policy.has_mask else None)
            obs, reward, terminated, truncated, info = env.step(action)
            total += float(reward)
            yield picture_of(env)
            if terminated or truncated:
                break
        return total

    def _play_team(self, seed: int) -> Episode:
        """An episode of a team, whose agents act by themselves (``envs.team_env.TeamLane``)."""
        policy, lane = self.policy, self.env
        names, carry = list(lane.action_spaces), dict[str, Any]()
        obs, _ = lane.reset(seed)
        total = 0.0
        yield picture_of(lane.env)
        for _ in range(MAX_STEPS):
            seen = {name: x for name, x in zip(names, obs.seen, strict=True) if x is not None}
            masks = zip(names, obs.masks or (), strict=False)
            allowed = {name: mask for name, mask in masks if mask is not None and name in seen}
            taken = policy.act(seen, carry, mask=allowed if policy.policy.has_mask else None)
            obs, rewards, terminated, truncated, _ = lane.step([taken.get(name) for name in names])
            total += float(np.sum(rewards))
            yield picture_of(lane.env)
            if terminated or truncated:
                break
        return total

    def _play_tensors(self, seed: int) -> Episode:
        """An episode of a tensor environment with a method ``draw``. After its last step the environment shows the next
        episode, so there is no picture of the end."""
        policy, env = self.policy, self.lanes
        draw: Any = env.draw  # type: ignore[attr-defined]
        obs, carry, memory = env.reset(seed), policy.policy.initial_carry(1), dict[str, Any]()
        total = 0.0
        for _ in range(MAX_STEPS):
            yield draw()
            with torch.no_grad():
                action, carry = policy.policy.act(stack_frames(obs, policy.spec.obs, memory), carry)
                step = raise_faults(env, env.step(action))
            obs, total = step.obs, total + float(step.reward.sum())
            if bool(step.terminated | step.truncated):
                break
        return total


def picture_of(env: Any) -> Picture:
    picture = env.render() if hasattr(env, "render") else None
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.dtype != np.uint8:
        name = type(getattr(env, "unwrapped", env)).__name__
        raise SpecError(f"{name}.render gives no rgb array; it needs render_mode='rgb_array'")
    return picture


# ---- writing


def write_video(write: Any, path: Path, frames: Iterator[Picture], fps: float) -> None:
    """The file gets its final name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".tmp-elegantrl-{uuid.uuid4().hex}{path.suffix.lower()}")
    try:
        write(tmp, frames, fps)
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)


def write_gif(path: Path, frames: Iterator[Picture], fps: float) -> None:
    every = math.ceil(fps / GIF_FPS)
    images = (Image.fromarray(picture) for picture in itertools.islice(frames, 0, None, every))
    milliseconds = 10 * max(1, round(100 * every / fps))  # the format counts hundredths of a second
    first = next(images)
    first.save(path, format="GIF", save_all=True, append_images=images, duration=milliseconds, loop=0)


def write_mp4(path: Path, frames: Iterator[Picture], fps: float) -> None:
    import imageio_ffmpeg  # type: ignore[import-not-found, import-untyped, unused-ignore]

    first = even(next(frames))
    height, width, _ = first.shape
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=fps, quality=7, macro_block_size=1)
    try:
        writer.send(None)
        for picture in itertools.chain([first], map(even, frames)):
            writer.send(np.ascontiguousarray(picture))
    finally:
        writer.close()


def even(picture: Picture) -> Picture:
    """A picture with an even width and height, as the codec needs it."""
    height, width, _ = picture.shape
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
