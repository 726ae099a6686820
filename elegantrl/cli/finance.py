"""``elegantrl finance train AGENT...`` and ``elegantrl backtest FOLDER``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape
from rich.table import Table
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from ..errors import ConfigError, did_you_mean
from ..finance.config import ExperimentConfig
from ..finance.experiment import run_experiment
from ..finance.report import COLUMNS
from ..finance.results import REPORT_FILE, Backtest, backtest
from ..runtime.display import Stdout
from .output import write_line
from .parse import parse

Switch = FlagCreatePairsOff[bool]
RunDir = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]

USAGE = """\
usage: elegantrl finance train AGENT... [OPTIONS]
       elegantrl finance train --config FILE [--run-dir D] [--resume]

Trains trading agents on one period, chooses their snapshots on the next, and keeps the last for
`elegantrl backtest FOLDER`. `elegantrl finance train ppo --help` lists all settings."""


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Train trading agents on one period and choose among their snapshots on the next.

    `elegantrl finance train ppo sac --seeds 5 --train 1990:2012 --validate 2013:2016 --test 2017:2022`

    `elegantrl backtest FOLDER` then writes the report of the test period.
    """

    run_dir: RunDir = None
    """Folder of the experiment; by default a fresh one under runs/."""
    resume: Switch = False
    """Continue the experiment in --run-dir; runs that are finished are kept."""
    experiment: OmitArgPrefixes[ExperimentConfig]


@dataclass(frozen=True, kw_only=True)
class FileFlags:
    """Train from a file, e.g. the finance.yaml of an earlier experiment."""

    config: Path
    """A YAML file with the settings of an experiment."""
    run_dir: RunDir = None
    """Folder of the experiment; by default a fresh one under runs/."""
    resume: Switch = False
    """Continue the experiment in --run-dir; runs that are finished are kept."""


@dataclass(frozen=True, kw_only=True)
class BacktestFlags:
    """Back-test what was trained, and write report.html, trades.csv, equity.csv and metrics.json."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]
    """Folder of `elegantrl finance train`, or of `elegantrl train AGENT StockTrading` or `Portfolio`."""
    test: str | None = None
    """Period of the back-test, START:END, instead of that of the experiment; a single run needs it."""
    out: RunDir = None
    """Folder to write to; by default FOLDER."""
    allow_import: Switch = False
    """Trust the folder: import code and read files that it names."""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        write_line(USAGE)
        return 0 if argv else 2
    if argv[0] != "train":
        raise ConfigError(f"elegantrl finance has no command {argv[0]!r}; {did_you_mean(argv[0], ['train'])}")
    words = argv[1:]
    if any(word.split("=")[0] == "--config" for word in words):
        file = parse(FileFlags, words, "elegantrl finance train")
        config, run_dir, resume = read_file(file.config), file.run_dir, file.resume
    else:
        flags = parse(TrainFlags, words, "elegantrl finance train")
        config, run_dir, resume = flags.experiment, flags.run_dir, flags.resume
    done = run_experiment(config, run_dir, resume, write_line)
    write_line(f"chosen on {config.validate}: {done.winner}; policies tried: {done.tried.policies}")
    write_line(f"elegantrl backtest {done.folder}")
    return 0


def read_file(path: Path) -> ExperimentConfig:
    try:
        return ExperimentConfig.from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def backtest_main(argv: list[str]) -> int:
    flags = parse(BacktestFlags, argv, "elegantrl backtest")
    if not flags.folder.is_dir():
        raise ConfigError(f"there is no folder {flags.folder}; check the path")
    found = backtest(flags.folder, flags.test, flags.out, flags.allow_import)
    show(found)
    write_line(str((flags.out or flags.folder) / REPORT_FILE))
    return 0


def show(found: Backtest) -> None:
    dates = found.main.ledger.dates
    title = escape(f"{found.title}: {str(dates[0])[:10]} to {str(dates[-1])[:10]}")
    table = Table("strategy", title=title, title_justify="left")
    names = ("return", "per year", "volatility", "max drawdown", "Sharpe", "costs")
    columns = [(name, text) for name, text in COLUMNS if name in names]
    for name, _ in columns:
        table.add_column(name, justify="right")
    for row in found.rows:
        table.add_row(escape(row.ledger.name), *(text(row) for _, text in columns))
    Stdout().print(table)
