"""Which folder a run writes to, and whether what lies there may be continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..config.run import RunConfig
from ..errors import CheckpointError, ConfigError
from ..store.commits import Store
from ..store.manifest import Commit
from ..store.untrusted import load_config


def choose_folder(config: RunConfig, run_dir: str | Path | None, resume: bool) -> Path:
    """The run folder: as asked, or a fresh name under ``runs/``. Nothing is ever deleted."""
    if run_dir is not None:
        folder = Path(run_dir)
        if not resume and (folder / "config.yaml").exists():
            raise ConfigError(f"{folder} already holds a run; add --resume to continue it or choose another --run-dir")
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file, not a folder; choose another --run-dir")
        return folder
    if resume:
        raise ConfigError("there is nothing to resume without a folder; name it with --run-dir")
    name = f"{config.agent_name}_{config.env.id.replace('/', '-').replace(':', '-')}_seed{config.train.seed}"
    taken = 1
    while (folder := Path("runs") / (name if taken == 1 else f"{name}_{taken}")).exists():
        taken += 1
    return folder


def check_same_config(folder: Path, config: RunConfig) -> None:
    """Refuse to continue a run that was made with other settings."""
    if not (folder / "config.yaml").exists():
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
    """The newest commit of a run folder that is whole, readable and of this config; None if there never was one."""

    def check(commit: Commit) -> None:
        for part in commit.parts:
            commit.load(part)
        found = commit.manifest["info"].get("config_hash")
        if found != config.hash():
            raise CheckpointError(f"it belongs to another config ({found} instead of {config.hash()})")

    return store.latest_valid(check)


def first_difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """``agent.lr is 0.001 there and 0.003 here`` for what differs, agent and environment before their settings."""
    there, here = (
        {f"{section}.{name}": value for section, values in config.items() for name, value in values.items()}
        for config in (found, wanted)
    )
    for name in sorted({**there, **here}, key=lambda name: name not in ("agent.name", "env.id")):
        if there.get(name) != here.get(name):
            return f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
    return "no difference"
