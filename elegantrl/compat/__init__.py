"""The names that documents of the public ElegantRL use, on top of this library; docs/migration.md lists them.

The library never imports this package. To add a name, add its line to ``names.NAMES``; to export it from a documented
module path too, add it to ``paths.PATHS``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import did_you_mean
from .names import LATER, NAMES

__all__ = [name for name, module in NAMES.items() if module not in ("nets", "demo", "gym")]
"""The names that ``elegantrl`` exports; the others are found under their documented module paths."""


def __getattr__(name: str) -> Any:
    if name in NAMES:
        module = import_module(f".{NAMES[name]}", __name__)
        return module if name == NAMES[name] else getattr(module, name)
    if name in LATER:
        raise AttributeError(LATER[name])
    raise AttributeError(f"elegantrl has no {name}; {did_you_mean(name, NAMES)}")
