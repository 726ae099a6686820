"""The module paths that documents import from, and ``elegantrl.train``, which is a function as well as such a path.

A documented module exists only as an entry of ``PATHS``: importing it makes a module object whose names are those of
this package. Python uses these paths after it has searched for files, so a file of the same name takes precedence.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, get_type_hints

from ..errors import did_you_mean
from .names import AGENTS, CONFIG, LATER, NETS, PROCESSES, TRAINING

CHASING = ("ChasingEnv", "ChasingVecEnv")
ISAAC = ("IsaacVecEnv", "IsaacOneEnv")
STORES = ("Evaluator", "ReplayBuffer")

PATHS: dict[str, tuple[str, ...]] = {
    "elegantrl.run": (*CONFIG, *TRAINING, *STORES, *CHASING, *AGENTS, "gym"),
    "elegantrl.train": (*CONFIG, *TRAINING, *STORES),
    "elegantrl.train.config": CONFIG,
    "elegantrl.train.run": (*TRAINING, *CONFIG, *STORES),
    "elegantrl.train.replay_buffer": ("ReplayBuffer",),
    "elegantrl.train.evaluator": ("Evaluator", "draw_learning_curve"),
    "elegantrl.train.worker": (),
    "elegantrl.train.learner": (),
    "elegantrl.agents.AgentBase": ("AgentBase",),
    "elegantrl.agents.net": NETS,
    "elegantrl.envs.Chasing": CHASING,
    "elegantrl.envs.IsaacGym": ISAAC,
    "elegantrl.envs.CustomGymEnv": ("PendulumEnv",),
    **dict.fromkeys((f"elegantrl.agents.{name}" for name in (*AGENTS, *LATER) if name.startswith("Agent")), (*AGENTS,)),
    "elegantrl.envs.StockTradingEnv": ("StockTradingEnv", "StockTradingVecEnv"),
}
"""Documented module path -> the names that a star import of it imports; other names of this package resolve too."""

CALLABLE = {
    "elegantrl.train": "elegantrl.runtime.train:train",
    **{f"elegantrl.agents.{name}": f"elegantrl.compat:{name}" for name in (*AGENTS, "AgentBase")},
}
"""Module paths that are also the name of a function or a class."""

MEMBERS = {f"elegantrl.config.{name}" for name in CONFIG}
"""Documented names of a package that has files of its own: ``from package import name`` looks for a submodule if the
package has no such name."""


class DocumentedModule(ModuleType):
    """A module whose names are looked up in ``elegantrl.compat`` at their first use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        known = PATHS[self.__name__]
        if name not in (*known, *LATER):
            raise AttributeError(f"{self.__name__} has no {name}; {did_you_mean(name, known or PROCESSES)}")
        value = getattr(import_module("elegantrl.compat"), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *PATHS[self.__name__]})

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)


class CallableModule(DocumentedModule):
    """A documented module that is also the function or class of the same name: it can be called and inherited from."""

    __wrapped__: Any  # inspect, help and typing read the signature from it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.__wrapped__,)


class Loader:
    """Makes the module of a documented path."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        kind = CallableModule if spec.name in CALLABLE else DocumentedModule
        return kind(spec.name, f"Documented names; they are defined in elegantrl.compat, like {__name__}.")

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        module.__dict__["__all__"] = list(PATHS[module.__name__])
        if isinstance(module, CallableModule):
            place, _, name = CALLABLE[module.__name__].partition(":")
            wrapped = getattr(import_module(place), name)
            hints = {} if isinstance(wrapped, type) else get_type_hints(wrapped)
            module.__dict__.update(__wrapped__=wrapped, __doc__=wrapped.__doc__, __annotations__=hints)
            if not isinstance(wrapped, type):
                module.__file__ = inspect.getsourcefile(wrapped)  # for tools that show the source


class MemberLoader:
    """Puts a class or a function in the place of the submodule that Python looks for."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None: ...

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        name = module.__name__.rpartition(".")[2]
        sys.modules[module.__name__] = getattr(import_module("elegantrl.compat"), name)


def spec_of(path: str) -> ModuleSpec | None:
    """How to import a documented path; None for any other.

    A name that is not supported raises an ``ImportError`` with its message here: ``from module import name`` replaces
    the text of an ``AttributeError`` by one of Python's own, and then looks for a submodule of that name.
    """
    parent, _, name = path.rpartition(".")
    if path in MEMBERS:
        return ModuleSpec(path, MemberLoader, origin="elegantrl.compat")  # type: ignore[arg-type]
    if path in PATHS:
        # As a package, so that Python looks for submodules.
        return ModuleSpec(path, Loader, origin="elegantrl.compat", is_package=True)  # type: ignore[arg-type]
    if name in LATER and parent in ("elegantrl", *PATHS):
        raise ImportError(LATER[name])
    return None
