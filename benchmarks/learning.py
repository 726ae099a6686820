"""Does it learn? Every (agent, task) of the acceptance set, by the command line with default settings.

    python benchmarks/learning.py                          # everything that is not in the results yet
    python benchmarks/learning.py --only ppo/CartPole-v1   # one pair
    python benchmarks/learning.py --fresh                  # forget earlier results first
    python benchmarks/learning.py --table                  # no runs: write docs/results.md and draw the curves

A run trains in a folder of its own, then `elegantrl eval` scores its best policy over 20 episodes with seeds that
training never saw. Results accumulate in results/learning.json after every run. An interrupted benchmark goes on where
it stopped, the run in progress from its newest commit (unfinished/), and two that run different pairs at once keep each
other's results. The evaluations of every run are kept in results/learning/, from which the curves are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from common import RESULTS, environment, write_json
from overview import Panel, plot_overview
from references import SOURCES, published
from rich.console import Console
from rich.table import Table
from team_table import BOUNDS, TEAM_NOTE, team_rows

from elegantrl.config.resolve import resolve_config
from elegantrl.report.plot import plot_runs

DOCUMENT = Path(__file__).parents[1] / "docs" / "results.md"
CURVES = RESULTS / "learning"
UNFINISHED = Path(__file__).parent / "unfinished"
Runs = list[dict[str, Any]]


class Task(NamedTuple):
    agent: str
    env: str
    threshold: float
    max_steps: int
    seeds: int
    every_seed: bool = False
    """Each seed has to reach the threshold, not only their mean."""
    flags: tuple[str, ...] = ()
    """Further words of the command line."""
    target: float | None = None
    """The return at which a run stops, for a task that has none of its own."""
    is_contrast: bool = False
    """The row shows what is missing without something; it need not pass."""
    episodes: int = 20
    """Fresh episodes of the score; the starts of a team differ much."""
    original: str | None = None
    """The task of another library with the same dynamics, on which the trained policy is scored too."""

    @property
    def name(self) -> str:
        """The agent, and the settings that differ from those of the library."""
        return " ".join([self.agent, *self.flags])

    @property
    def note(self) -> str:
        """Those settings alone, for the title of a panel."""
        return " ".join(self.flags).replace("--agent.", "")

    @property
    def key(self) -> str:
        return f"{self.name}/{self.env}"

    @property
    def slug(self) -> str:
        return "_".join([self.agent, *self.flags, self.env]).replace("/", "_").replace("--", "")

    def run_dir(self, seed: int) -> Path:
        """Where a run lives until it has ended, so that a benchmark cut short continues it."""
        return UNFINISHED / self.slug / f"seed{seed}"

    def kept(self, seed: int) -> Path:
        """Where the evaluations of a run are kept."""
        return CURVES / self.slug / f"seed{seed}"

    def all_kept(self) -> list[Path]:
        return [path for seed in range(self.seeds) if (path := self.kept(seed)).exists()]


SPREAD, FORAGING = "mpe2:simple_spread_v3", "Foraging-8x8-2p-2f-coop-v3"

TASKS = [
    Task("ppo", "CartPole-v1", 475, 100_000, 5, every_seed=True),
    Task("dqn", "CartPole-v1", 475, 100_000, 5, every_seed=True),
    Task("a2c", "CartPole-v1", 475, 500_000, 5, every_seed=True),
    Task("sac", "Pendulum-v1", -200, 20_000, 5, every_seed=True),
    Task("ppo", "Pendulum-v1", -200, 200_000, 5, every_seed=True),
    Task("ppo", "LunarLander-v3", 200, 1_000_000, 3, every_seed=True),
    Task("ppo", "TensorCartPole", 475, 100_000, 5, every_seed=True),
    Task("dqn", "TensorCartPole", 475, 100_000, 5, every_seed=True),
    Task("a2c", "TensorCartPole", 475, 500_000, 5, every_seed=True),
    Task("sac", "TensorPendulum", -200, 20_000, 5, every_seed=True),
    Task("ppo", "TensorPendulum", -200, 200_000, 5, every_seed=True),
    Task("double_dqn", "CartPole-v1", 475, 100_000, 3),
    Task("dueling_dqn", "CartPole-v1", 475, 100_000, 3),
    Task("d3qn", "CartPole-v1", 475, 100_000, 3),
    Task("discrete_sac", "CartPole-v1", 475, 100_000, 3),
    Task("ddpg", "Pendulum-v1", -180, 20_000, 3),
    Task("td3", "Pendulum-v1", -180, 20_000, 3),
    Task("mod_sac", "Pendulum-v1", -180, 20_000, 3),
    Task("redq", "Pendulum-v1", -180, 8_000, 3),
    Task("dqn", "Acrobot-v1", -100, 150_000, 3),
    Task("double_dqn", "Acrobot-v1", -100, 150_000, 3),
    Task("dueling_dqn", "Acrobot-v1", -100, 150_000, 3),
    Task("d3qn", "Acrobot-v1", -100, 150_000, 3),
    Task("ppo", "Acrobot-v1", -100, 150_000, 3),
    Task("d3qn", "LunarLander-v3", 200, 300_000, 3),
    Task("sac", "MountainCarContinuous-v0", 90, 50_000, 3),
    Task("sac", "LunarLanderContinuous-v3", 200, 300_000, 3),
    Task("td3", "LunarLanderContinuous-v3", 200, 300_000, 3),
    Task("ppo", "Hopper-v5", 2300, 1_000_000, 3),
    Task("a2c", "Pendulum-v1", -200, 1_000_000, 3),
    Task("ppo", "MountainCarContinuous-v0", 88, 200_000, 3),
    Task("ppo", "Swimmer-v5", 100, 1_000_000, 3, target=150),
    Task("sac", "HalfCheetah-v5", 5500, 150_000, 3),
    Task("td3", "HalfCheetah-v5", 4500, 150_000, 3),
    Task("ppo", "MiniGrid-DoorKey-5x5-v0", 0.9, 500_000, 3, target=0.95),
    Task("ppo", "MinAtar/Breakout-v1", 10, 2_000_000, 3, target=15),
    Task("dqn", "MinAtar/Breakout-v1", 5, 2_000_000, 3, target=10),
    Task("ppo", "PositionOnlyCartPole-v1", 450, 500_000, 3),
    Task("ppo", "PositionOnlyCartPole-v1", 450, 500_000, 3, flags=("--agent.memory", "none"), is_contrast=True),
    Task("ppo", "PositionOnlyPendulum-v1", -300, 1_000_000, 3),
    Task("ppo", "PositionOnlyPendulum-v1", -300, 1_000_000, 3, flags=("--agent.memory", "none"), is_contrast=True),
    Task("mappo", "TensorSpread", -58, 1_000_000, 3, episodes=1000, original=SPREAD),
    Task("vdn", "TensorSpread", -58, 1_000_000, 3, episodes=1000, original=SPREAD),
    Task("qmix", "TensorSpread", -58, 1_000_000, 3, episodes=1000, original=SPREAD),
    Task("maddpg", "TensorSpread", -52, 2_000_000, 3, target=-48, episodes=1000, original=SPREAD),
    Task("matd3", "TensorSpread", -52, 2_000_000, 3, target=-48, episodes=1000, original=SPREAD),
    Task("mappo", "TensorSkirmish", 16, 1_000_000, 3, episodes=1000),
    Task("qmix", "TensorSkirmish", 16, 500_000, 3, episodes=1000),
    Task("mappo", "TensorSpeakerListener", -23.5, 1_000_000, 3, episodes=1000),
    Task("maddpg", "TensorSpeakerListener", -23.5, 2_000_000, 3, target=-20, episodes=1000),
    Task("maddpg", "TensorTag", 13.7, 2_000_000, 3, target=20, episodes=1000),
    Task("mappo", "TensorForaging", 0.9, 3_000_000, 3, target=0.97, episodes=1000, original=FORAGING),
    Task("vdn", "TensorForaging", 0.9, 2_000_000, 3, target=0.97, episodes=1000, original=FORAGING),
    Task("qmix", "TensorForaging", 0.9, 2_000_000, 3, target=0.97, episodes=1000, original=FORAGING),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="agent/ENV pairs to run")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of the chosen pairs")
    parser.add_argument("--table", action="store_true", help="only write the document and draw the curves")
    args = parser.parse_args()
    unknown = set(args.only) - {task.key for task in TASKS}
    if unknown:
        parser.error(f"unknown pair {sorted(unknown)[0]}; known: {', '.join(task.key for task in TASKS)}")
    chosen = [task for task in TASKS if not args.only or task.key in args.only]
    if not args.table:
        run_all(chosen, args.fresh)
    results = load()
    measured = [task for task in TASKS if task.key in results["runs"]]
    draw([task for task in measured if task in chosen], measured)
    show(results)
    DOCUMENT.write_text(document(TASKS, results))
    print(DOCUMENT)
    return 0 if all(task.is_contrast or passed(task, runs_of(task, results)) for task in measured) else 1


def run_all(tasks: list[Task], fresh: bool) -> None:
    """Run what is missing, seed by seed."""
    if fresh:
        results = load()
        for task in tasks:
            results["runs"].pop(task.key, None)
            shutil.rmtree(UNFINISHED / task.slug, ignore_errors=True)
        write_json("learning.json", results)
    for task in tasks:
        for seed in range(task.seeds):
            if str(seed) in load()["runs"].get(task.key, {}):
                continue
            result = run(task, seed)
            results = load()  # again: another benchmark may have added to it meanwhile
            results["runs"].setdefault(task.key, {})[str(seed)] = result
            results["environment"] = environment()
            write_json("learning.json", results)


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
    """Whether the library ships other settings for this pair than those its runs had; later options do not count."""
    if task.flags:  # its settings are not those of the library
        return False
    now = resolve_config(task.agent, task.env)[0].to_dict()
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
- **fresh**: that best policy over 20 episodes (teams: more) which training never saw, the same for all runs; in
  brackets the worst seed. This score is held against the bar. Of a team it is the sum over its agents.

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
