"""What a population leaves behind: the champion, an ensemble, the leaderboard as a file, and a page with a picture."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..report.page import render
from ..store.ensemble import save_ensemble
from ..store.storage import Storage, open_storage
from ..store.trained import TrainedPolicy
from .fold import PopulationState
from .page import population_page

LEADERBOARD, CHAMPION, ENSEMBLE = "leaderboard.json", "champion", "ensemble"
REPORT, LINEAGE = "report.html", "lineage.png"


@dataclass(frozen=True, slots=True)
class PopulationResult:
    """The results of a population, and the folder or address that holds them."""

    url: str
    state: PopulationState
    summary: dict[str, Any]

    @property
    def best_return(self) -> float:
        """Mean return of the champion on seeds that were not used for its selection."""
        assert self.state.champion is not None
        return self.state.champion.score

    def load_policy(self) -> TrainedPolicy:
        """The champion; this process made the folder, so import paths in it are trusted."""
        return self._load(CHAMPION)

    def load_ensemble(self) -> TrainedPolicy:
        """The average of the best runs of the leaderboard, as one policy."""
        return self._load(ENSEMBLE)

    def _load(self, key: str) -> TrainedPolicy:
        with tempfile.TemporaryDirectory(prefix="elegantrl-") as scratch:
            open_storage(self.url).download(key, Path(scratch) / "run")
            return TrainedPolicy.load(Path(scratch) / "run", allow_import=True)


def summary_of(state: PopulationState, reason: str) -> dict[str, Any]:
    """The leaderboard and the counters as plain data."""
    config = state.config
    board = [
        {
            "rank": rank,
            "score": entry.score,
            "member": entry.member,
            "period": entry.period,
            "agent": entry.run.agent,
            "env_steps": entry.run.steps,
            "run": entry.run.key,
            "hypers": entry.run.hypers,
        }
        for rank, entry in enumerate(state.board, 1)
    ]
    return {
        "env": config.env,
        "mode": config.mode,
        "seed": config.seed,
        "stop_reason": reason,
        "generations": state.generation if config.mode == "generational" else None,
        "members": len(state.members),
        "periods": state.num_results,
        "env_steps": state.total_steps,
        "failures": state.num_failures,
        "wall_seconds": round(state.seconds, 3),
        "leaderboard": board,
        "retired": {member.id: member.reason for member in state.retired},
        "config_hash": config.hash(),
    }


def write_results(storage: Storage, state: PopulationState, reason: str) -> dict[str, Any]:
    """Write the leaderboard; the champion and the ensemble too if the population is complete."""
    summary = summary_of(state, reason)
    if reason == "complete" and state.board:
        with tempfile.TemporaryDirectory(prefix="elegantrl-") as scratch:
            folders = []
            for rank, entry in enumerate(state.board[: state.config.ensemble]):
                folders.append(Path(scratch) / f"run{rank}")
                storage.download(entry.run.key, folders[-1])
            storage.upload(folders[0], CHAMPION)
            summary["ensemble"] = _write_ensemble(storage, folders, Path(scratch) / "ensemble")
    storage.write(LEADERBOARD, (json.dumps(summary, indent=2) + "\n").encode())
    write_report(storage, state)
    return summary


def write_report(storage: Storage, state: PopulationState) -> None:
    """Write the page of the population, and its lineage as a picture."""
    page = population_page(state, storage.url)
    storage.write(REPORT, render(page).encode())
    if page.lineage is not None and page.lineage.spans:
        from ..report.lineage import plot_lineage  # matplotlib is slow to import and only needed here

        with tempfile.TemporaryDirectory(prefix="elegantrl-") as scratch:
            picture = plot_lineage(page.lineage, page.title, Path(scratch) / LINEAGE)
            storage.write(LINEAGE, picture.read_bytes())


def _write_ensemble(storage: Storage, folders: list[Path], target: Path) -> int:
    """The number of policies in the ensemble; 0 if policies of this kind cannot form one."""
    try:
        save_ensemble(folders, target, allow_import=True)
    except (ConfigError, NotImplementedError):  # policies with a memory, for example
        return 0
    storage.upload(target, ENSEMBLE)
    return len(folders)
