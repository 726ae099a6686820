"""Massively parallel deep reinforcement learning.

Importing this package loads nothing else: a name is resolved when it is first used, so that the command line starts at
once.
"""

__version__ = "0.1.0"

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config.run import RunConfig as RunConfig
    from .deploy.export import export as export
    from .deploy.serve import serve as serve
    from .envs import make_env as make_env
    from .envs.check import check_env as check_env
    from .errors import ElegantRLError as ElegantRLError
    from .population.evolve import evolve as evolve
    from .population.log import read_population as read_population
    from .population.report import write_report as write_report
    from .population.stacked.train import train_population as train_population
    from .registry import register_agent as register_agent
    from .report.video import record as record
    from .runtime.callback import Callback as Callback
    from .runtime.callback import Event as Event
    from .runtime.run import RunResult as RunResult
    from .runtime.train import train as train
    from .store.trained import TrainedPolicy as TrainedPolicy

_MODULES = {
    "Callback": ".runtime.callback",
    "ElegantRLError": ".errors",
    "Event": ".runtime.callback",
    "RunConfig": ".config.run",
    "RunResult": ".runtime.run",
    "TrainedPolicy": ".store.trained",
    "check_env": ".envs.check",
    "evolve": ".population.evolve",
    "export": ".deploy.export",
    "make_env": ".envs",
    "read_population": ".population.log",
    "record": ".report.video",
    "register_agent": ".registry",
    "serve": ".deploy.serve",
    "train_population": ".population.stacked.train",
    "write_report": ".population.report",
}
"""Where each public name is defined. ``train`` is a callable module, see ``compat.paths``; names that are not here
belong to ``compat``."""


class _DocumentedPaths:
    """Finds modules under the paths that the documents of the public ElegantRL import; called after all other finders.

    The table of these paths is loaded at the first such import.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "elegantrl" or name.startswith("elegantrl.compat"):
            return None
        return import_module("elegantrl.compat.paths").spec_of(name)


sys.meta_path.append(_DocumentedPaths)  # type: ignore[arg-type]


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__all__":
        value = [*_MODULES, "train", *import_module(".compat", __name__).__all__]
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name], __name__), name)
    else:
        compat = import_module(".compat", __name__)
        if name not in compat.LATER and find_spec(f"{__name__}.{name}"):
            return import_module(f".{name}", __name__)
        value = getattr(compat, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
