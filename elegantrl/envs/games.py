"""Environments of packages that are imported on demand, by their ids: Atari, MinAtar, MiniGrid and BabyAI, robots in
PyBullet, and teams in Level-Based Foraging and in the robot warehouse."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.wrappers import FilterObservation

from ..errors import ConfigError
from . import atari

log = logging.getLogger(__name__)


class Package(NamedTuple):
    """A package whose environments Gymnasium knows once it is imported."""

    extra: str
    """The extra of this package that installs it, which is also the kind of its environments."""
    module: str
    listed: tuple[str, ...]
    """How the ids of its environments begin."""
    shown: tuple[str, ...] = ()
    """The ids that a list shows, if the package has too many for a list."""

    def lists(self, env_id: str) -> bool:
        return env_id in self.shown if self.shown else env_id.startswith(self.listed)


FORAGING = tuple(
    f"Foraging-{task}-v3"
    for task in ("8x8-2p-2f-coop", "2s-8x8-2p-2f-coop", "10x10-3p-3f", "2s-10x10-3p-3f", "15x15-3p-4f", "15x15-4p-3f")
)
WAREHOUSE = tuple(f"rware-{task}-v2" for task in ("tiny-2ag", "tiny-4ag", "small-4ag", "tiny-2ag-hard"))

ROBOTS = (
    "Ant HalfCheetah Hopper Humanoid HumanoidFlagrun HumanoidFlagrunHarder InvertedDoublePendulum InvertedPendulum"
    " InvertedPendulumSwingup Pusher Reacher Thrower Walker2D"
)
BULLET = tuple(f"{robot}BulletEnv-v0" for robot in ROBOTS.split())

PACKAGES = (
    Package("atari", "ale_py", ("ALE/",)),
    Package("minatar", "minatar.gym", ("MinAtar/",)),
    Package("minigrid", "minigrid", ("MiniGrid-", "BabyAI-")),
    Package("marl", "lbforaging", ("Foraging-",), FORAGING),
    Package("marl", "rware", ("rware-",), WAREHOUSE),
    Package("pybullet", "pybullet_envs_gymnasium", BULLET, BULLET),
)


def package_of(env_id: str) -> Package | None:
    """The package of an environment; Atari's older ids, such as PongNoFrameskip-v4, have a beginning of their own."""
    if "NoFrameskip-v" in env_id:
        return PACKAGES[0]
    return next((package for package in PACKAGES if env_id.startswith(package.listed)), None)


def register_package(package: Package, env_id: str) -> None:
    """Import ``package`` so that Gymnasium knows its ids."""
    try:
        module = importlib.import_module(package.module)
    except ImportError as error:
        raise missing(package, env_id) from error
    if package.extra == "minatar" and "MinAtar/Breakout-v1" not in gym.registry:
        module.register_envs()
    if package.extra == "atari":  # or every process prints a banner
        module.ALEInterface.setLoggerMode(module.LoggerMode.Error)


def missing(package: Package, env_id: str) -> ConfigError:
    needs = package.module.partition(".")[0]
    return ConfigError(f"environment {env_id!r} needs {needs}: pip install 'elegantrl[{package.extra}]'")


def installed(package: Package) -> bool:
    try:
        return importlib.util.find_spec(package.module) is not None
    except (ImportError, ValueError):  # its parent is missing, or it was blocked
        return False


def make_lane(spec: Any, kwargs: dict[str, Any], training: bool) -> gym.Env[Any, Any]:
    """One environment of a Gymnasium spec, with the wrappers that its package needs."""
    root = str(spec.entry_point).partition(".")[0]
    if root == "ale_py":
        return atari.make_game(spec, kwargs, training)
    env = gym.make(spec, disable_env_checker=True, **kwargs)
    if root == "minatar":
        return ForgetsAction(env)
    if root == "pybullet_envs_gymnasium":
        env.reset(seed=0)  # the first step after its first reset has another reward than after all others
    return without_text(env, spec.id) if root == "minigrid" else env


def usual_frames(spec: Any, kwargs: dict[str, Any]) -> int:
    """The number of frames that policies usually see at once."""
    return atari.usual_frames(kwargs) if str(spec.entry_point).startswith("ale_py.") else 1


class ForgetsAction(gym.Wrapper[Any, Any, Any, Any]):
    """MinAtar repeats the last action now and then, at the first step of an episode the last one of the episode before.

    Without that memory an episode depends on its seed and its actions alone.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        game: Any = self.unwrapped
        game.game.last_action = 0
        return self.env.reset(seed=seed, options=options)


def without_text(env: gym.Env[Any, Any], env_id: str) -> gym.Env[Any, Any]:
    """``env`` without the mission, a text, which no network here reads."""
    space = env.observation_space
    if not isinstance(space, gym.spaces.Dict) or "mission" not in space.spaces:
        return env
    kept = [key for key in space.spaces if key != "mission"]
    log.info("environment %r: the text 'mission' is left out of the observation; %s are kept", env_id, kept)
    return FilterObservation(env, kept)
