"""What benchmarks share: ratios from alternating runs, and what is written beside figures."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Measurement:
    """Two sides of a ratio, one value per repeat."""

    what: str
    unit: str
    ours: list[float]
    reference: list[float]
    reference_name: str
    bar: str

    @property
    def ratios(self) -> list[float]:
        """Of neighbours in time: a shared machine changes its speed from second to second."""
        return [a / b for a, b in zip(self.ours, self.reference, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> list[float]:
        """Between which half of the ratios lie."""
        return np.percentile(self.ratios, (25, 75)).tolist()

    def row(self) -> list[str]:
        low, high = self.quartiles
        return [self.what, self.reference_name, self.unit, _spread(self.reference), _spread(self.ours),
                f"{self.ratio:.2f} ({low:.2f} - {high:.2f})", self.bar]  # fmt: skip


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} - {max(values):,.0f})"


def alternate(*sides: Callable[[], float], repeats: int) -> list[list[float]]:
    """Call each side in turn, so that a change of the machine's load hits all of them."""
    values: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats):
        for side, measured in zip(sides, values, strict=True):
            measured.append(side())
    return values


def show(title: str, measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Print each measurement as it comes, then the table; return them as data."""
    table = Table(title=f"{title}: median of the repeats (min - max; for ratios the quartiles)", title_justify="left")
    for column in ("what", "reference", "unit", "reference value", "elegantrl", "ratio", "bar"):
        table.add_column(column)
    results = []
    for measurement in measurements:
        print(" | ".join(measurement.row()), flush=True)
        table.add_row(*measurement.row())
        results.append({**measurement.__dict__, "ratio": measurement.ratio, "ratio_quartiles": measurement.quartiles})
    Console(width=180).print(table)
    return results


def environment() -> dict[str, Any]:
    packages = {}
    for name in ("torch", "gymnasium", "numpy", "stable-baselines3", "sb3-contrib", "elegantrl"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _output(["git", "rev-parse", "--short", "HEAD"]),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": packages,
    }


def write_json(name: str, data: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / name
    written = path.with_suffix(f".{os.getpid()}.tmp")
    written.write_text(json.dumps(data, indent=1) + "\n")
    return written.replace(path)  # at once: a benchmark beside this one never reads half of it


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
