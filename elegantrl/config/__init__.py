"""Settings: how they are declared, merged, checked and written to a file.

``fields`` is the lowest of these modules: agents declare their settings with it. The others import the agents.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Names that documents of the public ElegantRL import from here, as from ``elegantrl.train.config``."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("elegantrl.train.config"), name)
