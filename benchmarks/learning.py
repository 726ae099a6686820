"""Does it learn? Every (agent, task) of the acceptance set, by the command line with default settings.

    python benchmarks/learning.py                          # everything that is not in the results yet
    python benchmarks/learning.py --only ppo/CartPole-v1   # one pair
    python benchmarks/learning.py --fresh                  # forget earlier results first
    python benchmarks/learning.py --only ppo/CartPole-v1 --seeds 2   # one run, and no document
    python benchmarks/learning.py --table                  # no runs: write docs/results.md and draw the curves

A run trains in a folder of its own, then `elegantrl eval` scores its best policy over 20 episodes with seeds that
training never saw. Results accumulate in results/learning.json after every run. An interrupted benchmark goes on where
it stopped, the run in progress from its newest commit (unfinished/), and two that run different pairs or seeds at once
keep each other's results. The evaluations of every run are kept in results/learning/, from which the curves are drawn.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from common import RESULTS, environment, write_json
from learning_tasks import CURVES, TASKS, UNFINISHED, Task
from overview import Panel, plot_overview
from references import SOURCES, published
from rich.console import Console
from rich.table import Table
from team_table import BOUNDS, TEAM_NOTE, team_rows

from elegantrl.config.fields import has_effect, used_fields
from elegantrl.config.resolve import resolve_config
from elegantrl.report.plot import plot_runs

DOCUMENT = Path(__file__).parents[1] / "docs" / "results.md"
Runs = list[dict[str, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="agent/ENV pairs to run")
    parser.add_argument("--seeds", nargs="*", type=int, help="only these, without the document: runs side by side")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of the chosen pairs")
    parser.add_argument("--table", action="store_true", help="only write the document and draw the curves")
    args = parser.parse_args()
    unknown = set(args.only) - {task.key for task in TASKS}
    if unknown:
        parser.error(f"unknown pair {sorted(unknown)[0]}; known: {', '.join(task.key for task in TASKS)}")
    chosen = [task for task in TASKS if not args.only or task.key in args.only]
    if not args.table:
        run_all(chosen, args.fresh, args.seeds)
    if args.seeds is not None:
        return 0
    results = load()
    measured = [task for task in TASKS if task.key in results["runs"]]
    draw([task for task in measured if task in chosen], measured)
    show(results)
    DOCUMENT.write_text(document(TASKS, results))
    print(DOCUMENT)
    return 0 if all(task.is_contrast or passed(task, runs_of(task, results)) for task in measured) else 1


def run_all(tasks: list[Task], fresh: bool, seeds: list[int] | None = None) -> None:
    """Run what is missing, seed by seed."""
    if fresh:
        with exclusive():
            results = load()
            for task in tasks:
                results["runs"].pop(task.key, None)
                shutil.rmtree(UNFINISHED / task.slug, ignore_errors=True)
            write_json("learning.json", results)
    for task in tasks:
        for seed in range(task.seeds):
            if str(seed) in load()["runs"].get(task.key, {}) or (seeds is not None and seed not in seeds):
                continue
            result = run(task, seed)
            with exclusive():
                results = load()  # again: another benchmark may have added to it meanwhile
                results["runs"].setdefault(task.key, {})[str(seed)] = result
                results["environment"] = environment()
                write_json("learning.json", results)


@contextmanager
def exclusive() -> Iterator[None]:
    """No other benchmark reads results to change them meanwhile."""
    RESULTS.mkdir(exist_ok=True)
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)  # which ends the lock


def load() -> dict[str, Any]:
    path = RESULTS / "learning.json"
    return json.loads(path.read_text()) if path.exists() else {"runs": {}}


def runs_of(task: Task, results: dict[str, Any]) -> Runs:
    return list(results["runs"].get(task.key, {}).values())


def run(task: Task, seed: int) -> dict[str, Any]:
    """Train and score one seed in processes of their own, one thread each; keep its evaluations."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    cli = [sys.executable, "-m", "elegantrl.cli.main"]
    run_dir = task.run_dir(seed)
    train = [*cli, "train", task.agent, task.env, *task.flags, "--seed", str(seed), "--run-dir", str(run_dir)]
    if task.target is not None:
        train += ["--target-return", str(task.target)]
    if any(run_dir.glob("commits/c-*")):
        train.append("--resume")
    else:
        shutil.rmtree(run_dir, ignore_errors=True)  # what was interrupted before its first commit begins anew
    subprocess.run(train, check=True, env=env, stdout=subprocess.DEVNULL)
    score = [*cli, "eval", str(run_dir), "--episodes", str(task.episodes), "--json"]

    def scored_in(*flags: str) -> dict[str, Any]:
        text = subprocess.run([*score, *flags], check=True, env=env, capture_output=True, text=True).stdout
        found: dict[str, Any] = json.loads(text)
        return found

    scored = scored_in()
    original = None if task.original is None else scored_in("--env", task.original)
    summary = json.loads((run_dir / "summary.json").read_text())
    kept = task.kept(seed)
    kept.mkdir(parents=True, exist_ok=True)
    rows = [row for row in (run_dir / "metrics.jsonl").read_text().splitlines() if '"eval"' in row]
    (kept / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    (kept / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    shutil.copy(run_dir / "config.yaml", kept)
    shutil.rmtree(run_dir)
    result = {
        name: summary[name] for name in ("env_steps", "wall_seconds", "stop_reason", "best_return", "final_return")
    }
    result |= {"mean_return": scored["mean_return"], "std_return": scored["std_return"]}
    if "win_rate" in scored:
        result["win_rate"] = scored["win_rate"]
    if original is not None:
        result["original_return"] = original["mean_return"]
    print(f"{task.key} seed {seed}: {result['mean_return']:.1f} after {result['env_steps']:,} steps", flush=True)
    return result


def passed(task: Task, runs: Runs) -> bool:
    """Whether the fresh scores of all seeds, or their mean, reach the threshold within the budget."""
    scores = [r["mean_return"] for r in runs]
    if len(scores) < task.seeds or any(r["env_steps"] > task.max_steps * 1.02 for r in runs):
        return False
    return (min(scores) if task.every_seed else statistics.fmean(scores)) >= task.threshold


def settings_changed(task: Task) -> bool:
    """Whether the library ships other settings for this pair than those its runs had; options that came later or have
    no effect do not count."""
    if task.flags:  # its settings are not those of the library
        return False
    config = resolve_config(task.agent, task.env)[0]
    now = config.to_dict()
    for field in used_fields(config.agent):
        if not has_effect(config.agent, field.metadata.get("only_with")):
            now["agent"].pop(field.name, None)
    del now["train"]["seed"]
    if now["train"]["target_return"] is None:  # a run takes that of the environment or of the task and writes it down
        del now["train"]["target_return"]
    for path in task.all_kept():
        written = path / "config.yaml"
        then = yaml.safe_load(written.read_text()) if written.exists() else {}
        for section in ("agent", "env", "train", "eval"):
            had = then.get(section, {})
            if any(had.get(name, value) != value for name, value in now[section].items()):
                return True
    return False


def show(results: dict[str, Any]) -> None:
    table = Table(title="Learning with default settings (20 evaluation episodes per seed)", title_justify="left")
    for name in ("agent", "task", "threshold", "seeds reached", "mean return", "worst seed", "steps", "seconds"):
        table.add_column(name, justify="left" if name in ("agent", "task") else "right")
    for task in TASKS:
        runs = runs_of(task, results)
        if not runs:
            continue
        scores = [r["mean_return"] for r in runs]
        table.add_row(
            task.name,
            task.env,
            f"{task.threshold:g}",
            f"{sum(s >= task.threshold for s in scores)} of {len(runs)}",
            f"{statistics.fmean(scores):.1f}",
            f"{min(scores):.1f}",
            steps_range(runs),
            f"{statistics.fmean(r['wall_seconds'] for r in runs):.1f}",
        )
    Console(width=120).print(table)


# ---- docs/results.md and the pictures


def draw(tasks: list[Task], measured: list[Task]) -> None:
    """A picture for each task, and one of all."""
    for task in tasks:
        if kept := task.all_kept():
            plot_runs(kept, CURVES / f"{task.slug}.png")
    panels = [Panel(kept, task.note) for task in measured if (kept := task.all_kept())]
    if panels:
        plot_overview(panels, CURVES / "overview.png")


HEADER = """\
# Learning results

Written by `python benchmarks/learning.py --table` from `benchmarks/results/learning.json`; do not edit.

Every run is `elegantrl train AGENT TASK --seed N` with the settings that ship with the library, seeds 0, 1, 2, ...; the
settings were chosen while looking at such runs. Words after an agent's name are further words of that command. Scores
are means over seeds, \u00b1 the standard deviation over seeds:

- **final**: the last evaluation of the run;
- **best**: its best evaluation, confirmed on fresh episodes before it counts;
- **fresh**: that best policy over 20 episodes (BipedalWalker and Reacher 100, teams 1,000) which training never saw,
  the same for all runs; in brackets the worst seed. The bar is for this score. Of a team it is the sum over its agents.

A bar asks *every* seed, or the *mean* over seeds, for a fresh score within a number of environment steps. Runs stop as
soon as they reach their target: steps (least and most over seeds) are what it took, and more steps might give more.
Published scores belong to the end of a fixed budget, named behind the @. Seconds are the mean wall time of a run with
one thread, on a shared machine with other work on it. Rows marked (old) were measured with settings that have since
changed.
"""


def document(tasks: list[Task], results: dict[str, Any]) -> str:
    """The whole of docs/results.md."""
    columns = ("agent", "task", "seeds", "steps", "final", "best", "fresh (worst)", "bar", "reached", "seconds",
               "published")  # fmt: skip
    lines = [HEADER, "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [table_row(task, runs) for task in tasks if (runs := runs_of(task, results))]
    if teams := [task for task in tasks if task.env in BOUNDS and runs_of(task, results)]:
        lines += ["", "## Teams", "", TEAM_NOTE, "", *team_rows((task, runs_of(task, results)) for task in teams)]
    missing = [task.key for task in tasks if not runs_of(task, results)]
    if missing:
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
    lines += ["", "![learning curves](../benchmarks/results/learning/overview.png)", "", CURVE_NOTE]
    lines += ["", "## Where the published scores come from", "", SOURCE_NOTE, ""]
    lines += [f"- **{key}**: [{s.name}]({s.url}), {s.version}. {s.metric}." for key, s in SOURCES.items()]
    if "environment" in results:
        e = results["environment"]
        versions = ", ".join(f"{name} {version}" for name, version in e["packages"].items() if version)
        lines += ["", f"Newest run: commit {e['commit']}, {e['date'][:10]}, {e['cpu']}, {e['cores']} cores,"]
        lines += [f"Python {e['python']}, {versions}."]
    return "\n".join(lines) + "\n"


CURVE_NOTE = """\
Curves are evaluations during training: the interquartile mean over seeds, and a band that holds it with 95 % confidence
(bootstrap over whole runs). With three seeds that band reaches from the lowest to the highest: three runs cannot say
more. There is a picture of each task in `benchmarks/results/learning/`."""

SOURCE_NOTE = """\
The figures differ in what they measure: a single run or the mean of several, the final policy or the best on the way,
with or without exploration, sometimes on an older version of the task; what follows the \u00b1 is the spread over
episodes or over seeds. Nearest to our fresh scores are the zoo's, which also come from playing a trained policy without
exploration; but the zoo plays the last policy of a run and we the best."""


def table_row(task: Task, runs: Runs) -> str:
    fresh = [r["mean_return"] for r in runs]
    complete = len(runs) >= task.seeds
    cells = [
        task.name,
        task.env,
        str(len(runs)) if complete else f"{len(runs)} of {task.seeds}",
        steps_range(runs),
        spread([r["final_return"] for r in runs]),
        spread([r["best_return"] for r in runs]),
        f"{spread(fresh)} ({min(fresh):.1f})",
        f"{'every' if task.every_seed else 'mean'} >= {task.threshold:g} in {task.max_steps:,}",
        (("**yes**" if passed(task, runs) else "no") if complete else "open") + " (old)" * settings_changed(task),
        f"{statistics.fmean(r['wall_seconds'] for r in runs):,.0f}",
        published(task.agent, task.env),
    ]
    return "| " + " | ".join(cells) + " |"


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} \u00b1 {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def steps_range(runs: Runs) -> str:
    least, most = (choose(r["env_steps"] for r in runs) for choose in (min, max))
    return f"{least:,}" if least == most else f"{least:,} - {most:,}"


if __name__ == "__main__":
    sys.exit(main())
