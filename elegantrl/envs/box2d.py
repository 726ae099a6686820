"""An empty Box2D world for each episode of BipedalWalker and CarRacing.

These environments keep one ``b2World`` for all episodes. A world that was emptied is not a new one: the order in which
it solves contacts depends on the bodies it has held before. The same seed and actions could then give other numbers in
the second episode than in the first, and a resumed run could not replay an open episode. LunarLander makes a world per
episode itself.
"""

from __future__ import annotations

import sys
from typing import Any

GAMES = {("gymnasium.envs.box2d.bipedal_walker", "BipedalWalker"), ("gymnasium.envs.box2d.car_racing", "CarRacing")}


def keeps_its_world(env: Any) -> bool:
    """Whether the environment inside all wrappers is one of those, or of a class derived from one."""
    inner = type(getattr(env, "unwrapped", env))
    return any((cls.__module__, cls.__qualname__) in GAMES for cls in inner.__mro__)


def renew_world(env: Any) -> None:
    """Give ``env`` an empty world, to be called before its reset."""
    game = env.unwrapped
    game._destroy()  # the bodies must be removed from the world that holds them
    game.world = sys.modules["Box2D"].b2World(gravity=game.world.gravity)
