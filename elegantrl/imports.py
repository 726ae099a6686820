"""Finds the object that a setting names: by a name of this library, or by an import path, ``my_package.nets:MyPolicy``.

An import path needs no registration and works in any process. Importing runs code, so the callers of this module refuse
import paths from files unless the user allows them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any

from .errors import ConfigError, did_you_mean

LIBRARY_TASKS = re.compile(r"envpool:.+|mjlab:.+|mpe2:\w+_v[0-9]+|pettingzoo\.\w+:\w+_v[0-9]+")
"""Ids of tasks of libraries that the extras install: like registered names, they cannot lead to other code."""


def is_import_path(name: str) -> bool:
    return ":" in name


def is_foreign_code(env_id: str) -> bool:
    """Whether an environment is named by an import path that may lead to any code."""
    return is_import_path(env_id) and LIBRARY_TASKS.fullmatch(env_id) is None


def find(name: str, table: Mapping[str, Any], what: str) -> Any:
    """The value of ``name`` in ``table``, or the object at an import path; ``what`` is its kind in error messages."""
    if not is_import_path(name):
        if name not in table:
            raise ConfigError(
                f"there is no {what} {name!r}; {did_you_mean(name, table)} (or an import path, package.module:Name)"
            )
        return table[name]
    module, _, attribute = name.partition(":")
    try:
        return attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(
            f"the {what} {name!r} cannot be imported ({text}); write package.module:Name and put the package where"
            f" Python finds it"
        ) from error


def import_path(thing: Any, what: str) -> str:
    """The import path of a class or function; a text is returned as it is."""
    if isinstance(thing, str):
        return thing
    module, name = (getattr(thing, part, "") for part in ("__module__", "__qualname__"))
    if not callable(thing) or not module or not name or "<" in name:
        raise ConfigError(
            f"the {what} {name or type(thing).__name__} has no import path, by which other processes find it: it must"
            f" be a class or a function at the top of a module, not a lambda, not inside a function and not an object"
        )
    return f"{module}:{name}"


def is_only_here(path: str) -> bool:
    """Whether an import path leads to a notebook or an interactive session, which other processes cannot import."""
    return path.startswith("__main__:") and not hasattr(sys.modules.get("__main__"), "__file__")


def import_fast(module: str) -> Any:
    """``elegantrl.fast.<module>``, or None if that package was removed: the library works without it."""
    try:
        return import_module(f"{__package__}.fast.{module}")
    except ModuleNotFoundError as error:
        if error.name in (f"{__package__}.fast", f"{__package__}.fast.{module}"):
            return None
        raise
