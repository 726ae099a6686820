"""The run folder of documented scripts: ``cwd``, ``continue_train`` and ``if_remove``."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..errors import ConfigError
from ..store.commits import Store
from ..store.untrusted import load_config


def fresh_folder(name: str, reuse: bool) -> str:
    """``./name``, or with a number if that folder holds a run and ``reuse`` is off."""
    name = name.replace("/", "-").replace(":", "-")
    path, taken = Path(name), 1
    while not reuse and (path / "config.yaml").exists():
        taken += 1
        path = Path(f"{name}_{taken}")
    return f"./{path}"


def open_folder(folder: Path, continue_train: bool, if_remove: bool | None) -> bool:
    """Whether to continue the run in ``folder``; the folder is deleted only if ``if_remove`` is True."""
    if continue_train and if_remove:
        raise ConfigError("continue_train and if_remove contradict each other; set one of them")
    if not (folder / "config.yaml").exists():
        return False
    if if_remove is True:
        remove_run(folder)
    elif not continue_train:
        raise ConfigError(
            f"{folder} already holds a run; set continue_train to go on with it, if_remove to delete it, or another cwd"
        )
    return continue_train


def remove_run(folder: Path) -> None:
    """Delete a run folder, if it is one of this library, unused, and does not hold the working folder."""
    load_config(folder)  # an error unless the folder is one of this library
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ConfigError(f"if_remove would delete {folder.resolve()}, which holds the working folder; set another cwd")
    store = Store(folder)
    store.lock()
    try:
        shutil.rmtree(folder)
    finally:
        store.close()
