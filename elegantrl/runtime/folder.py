"""Selects the folder of a run, and checks whether the run in it may be continued."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ..config.run import RunConfig
from ..errors import CheckpointError, ConfigError
from ..store.commits import Store
from ..store.files import storage_error
from ..store.manifest import Commit
from ..store.untrusted import CONFIG_FILE, load_config
from .changes import changeable, new_changes


@contextlib.contextmanager
def claim_folder(config: RunConfig, run_dir: str | Path | None, resume: bool) -> Iterator[Path]:
    """The run folder: ``run_dir``, or a new one under ``runs/``, which is made here so that no other run can take it.

    A folder with contents is never deleted; a new folder is removed if the run was refused before it wrote.
    """
    if run_dir is not None:
        yield _check_folder(Path(run_dir), resume)
        return
    if resume:
        raise ConfigError("there is nothing to resume without a folder; name it with --run-dir")
    folder = _make_folder(config)
    try:
        yield folder
    finally:
        for path in (folder, folder.parent):
            with contextlib.suppress(OSError):  # the folder is not empty
                path.rmdir()


def _check_folder(folder: Path, resume: bool) -> Path:
    if not resume and (folder / CONFIG_FILE).exists():
        raise ConfigError(f"{folder} already holds a run; add --resume to continue it or choose another --run-dir")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not a folder; choose another --run-dir")
    return folder


def _make_folder(config: RunConfig) -> Path:
    """A folder that did not exist before: the file system creates it and checks this in one operation."""
    name = re.sub(r"[^\w.+-]", "-", f"{config.agent_name}_{config.env.id.strip('<>')}_seed{config.train.seed}")[:150]
    number = 1
    while True:
        folder = Path("runs") / (name if number == 1 else f"{name}_{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise storage_error("making the run folder", error, folder.parent, 0) from error


def check_same_config(folder: Path, config: RunConfig, allow: Collection[str] = ()) -> None:
    """Refuse to continue a run that was made with other settings, except those of the agent that ``allow`` names."""
    if not (folder / CONFIG_FILE).exists():
        raise CheckpointError(f"{folder} holds no run to resume; check --run-dir or drop --resume")
    if not (folder / "commits").is_dir():
        raise CheckpointError(f"{folder} holds no commit to resume; start anew in another --run-dir")
    found = load_config(folder, named=(config.agent_name,))
    for name, (there, here) in differences(found.identity(), config.identity()).items():
        setting = name.removeprefix("agent.")
        if name != f"agent.{setting}" or setting not in allow:
            change = f", or --allow {setting}={here} to change it" if setting in changeable(config.agent) else ""
            raise ConfigError(
                f"{folder} belongs to another config: {name} is {there!r} there and {here!r} here;"
                f" use the same settings or another --run-dir{change}"
            )


def find_commit(store: Store, config: RunConfig) -> Commit | None:
    """The newest complete and readable commit of a run folder with this config; None if there is no commit."""

    def check(commit: Commit) -> None:
        for part in commit.parts:
            commit.load(part)
        if new_changes(commit, config) is None:
            found = commit.manifest["info"].get("config_hash")
            raise CheckpointError(f"it belongs to another config ({found} instead of {config.hash()})")

    return store.latest_valid(check)


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, as ``agent.lr``, with both values; agent and environment come first."""
    there, here = (
        {f"{section}.{name}": value for section, values in config.items() for name, value in values.items()}
        for config in (found, wanted)
    )
    names = sorted({**there, **here}, key=lambda name: name not in ("agent.name", "env.id"))
    return {name: (there.get(name), here.get(name)) for name in names if there.get(name) != here.get(name)}
