"""Selects the folder of a run, and checks whether the run in it may be continued."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..config.run import RunConfig
from ..errors import CheckpointError, ConfigError
from ..store.commits import Store
from ..store.files import storage_error
from ..store.manifest import Commit
from ..store.untrusted import CONFIG_FILE, load_config


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


def check_same_config(folder: Path, config: RunConfig) -> None:
    """Refuse to continue a run that was made with other settings."""
    if not (folder / CONFIG_FILE).exists():
        raise CheckpointError(f"{folder} holds no run to resume; check --run-dir or drop --resume")
    if not (folder / "commits").is_dir():
        raise CheckpointError(f"{folder} holds no commit to resume; start anew in another --run-dir")
    found = load_config(folder, named=(config.agent_name,))
    if found.hash() != config.hash():
        raise ConfigError(
            f"{folder} belongs to another config: {first_difference(found.identity(), config.identity())};"
            f" use the same settings or another --run-dir"
        )


def find_commit(store: Store, config: RunConfig) -> Commit | None:
    """The newest complete and readable commit of a run folder with this config; None if there is no commit."""

    def check(commit: Commit) -> None:
        for part in commit.parts:
            commit.load(part)
        found = commit.manifest["info"].get("config_hash")
        if found != config.hash():
            raise CheckpointError(f"it belongs to another config ({found} instead of {config.hash()})")

    return store.latest_valid(check)


def first_difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The first difference, as ``agent.lr is 0.001 there and 0.003 here``; agent and environment come first."""
    there, here = (
        {f"{section}.{name}": value for section, values in config.items() for name, value in values.items()}
        for config in (found, wanted)
    )
    for name in sorted({**there, **here}, key=lambda name: name not in ("agent.name", "env.id")):
        if there.get(name) != here.get(name):
            return f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
    return "no difference"
