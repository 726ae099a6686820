"""The learning benchmark's verdicts and its document; no training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from elegantrl.errors import ConfigError
from elegantrl.store.runlog import RunLog

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("learning", "learning_tasks", "common", "overview", "references", "team_table"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import common
    import learning
    import learning_tasks

    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(learning, "RESULTS", tmp_path)
    for module in (learning, learning_tasks):
        monkeypatch.setattr(module, "CURVES", tmp_path / "learning")
    monkeypatch.setattr(learning, "DOCUMENT", tmp_path / "results.md")
    monkeypatch.setattr(learning, "TASKS", [learning.Task("ppo", "CartPole-v1", 475, 1000, 2)])
    return learning


def result(score: float, steps: int = 500) -> dict[str, Any]:
    scores = {"final_return": score - 2, "best_return": score + 1, "mean_return": score, "std_return": 1.0}
    return {"env_steps": steps, "wall_seconds": 60.0, "stop_reason": "target_return", **scores}


@pytest.mark.parametrize(
    ("scores", "steps", "mean_passes", "every_passes"),
    [
        ([480.0, 475.0], 500, True, True),
        ([500.0, 450.0], 500, True, False),  # 475 on average
        ([500.0, 449.0], 500, False, False),
        ([500.0], 500, False, False),  # a seed is missing
        ([500.0, 500.0], 1020, True, True),  # an iteration too many is forgiven
        ([500.0, 500.0], 1021, False, False),
    ],
)
def test_a_bar_is_reached_by_every_seed_or_by_the_mean(
    learning: ModuleType, scores: list[float], steps: int, mean_passes: bool, every_passes: bool
) -> None:
    runs = [result(score, steps) for score in scores]
    assert learning.passed(learning.Task("ppo", "CartPole-v1", 475, 1000, 2), runs) == mean_passes
    assert learning.passed(learning.Task("ppo", "CartPole-v1", 475, 1000, 2, every_seed=True), runs) == every_passes


def test_a_row_says_it_all(learning: ModuleType) -> None:
    task = learning.Task("dqn", "Acrobot-v1", -100, 150_000, 3)
    row = learning.table_row(task, [result(-90.0, 1000), result(-80.0, 20_000), result(-70.0, 3000)])
    # Of -90, -80, -70 the mean is -80 and the standard deviation 10.
    assert row.split(" | ")[:10] == [
        "| dqn", "Acrobot-v1", "3", "1,000 - 20,000", "-82.0 ± 10.0", "-79.0 ± 10.0", "-80.0 ± 10.0 (-90.0)",
        "mean >= -100 in 150,000", "**yes**", "60",
    ]  # fmt: skip
    assert "zoo -77 ± 12 @100k" in row
    one = learning.table_row(task, [result(-120.0)]).split(" | ")
    assert (one[2], one[3], one[6], one[8]) == ("1 of 3", "500", "-120.0 (-120.0)", "open")


@pytest.mark.parametrize(
    ("name", "value", "mark"),
    [("lr", 2e-3, ""), ("lr", 0.5, " (old)"), ("horizon", 64, " (old)"), ("long_gone", 1, "")],
)
def test_a_row_measured_with_other_settings_is_marked(learning: ModuleType, name: str, value: float, mark: str) -> None:
    task = learning.Task("ppo", "CartPole-v1", 475, 100_000, 2)
    then = learning.resolve_config("ppo", "CartPole-v1", {"train": {"seed": 1}})[0].to_dict()
    then["agent"][name] = value
    then["train"]["target_return"] = 475.0  # the environment's, which a run fills in
    del then["agent"]["layer_norm"], then["eval"]  # what was not written down or did not exist is no difference
    task.kept(0).mkdir(parents=True)  # holds no settings: nothing can be said
    task.kept(1).mkdir(parents=True)
    (task.kept(1) / "config.yaml").write_text(learning.yaml.safe_dump(then))
    assert learning.table_row(task, [result(480.0), result(490.0)]).split(" | ")[8] == "**yes**" + mark


def test_references_name_their_source_and_the_task_they_are_for(learning: ModuleType) -> None:
    import references

    for found in references.REFERENCES.values():
        assert {r.source for r in found} <= set(references.SOURCES)
    assert references.published("ppo", "TensorCartPole").endswith("; all for CartPole-v1")
    assert references.published("redq", "Pendulum-v1") == "none found"
    assert references.published("ppo", "Nowhere-v0") == "-"


def test_the_document_lists_what_was_measured_and_what_was_not(learning: ModuleType) -> None:
    tasks = [learning.Task("ppo", "CartPole-v1", 475, 1000, 1), learning.Task("sac", "Pendulum-v1", -200, 1000, 1)]
    text = learning.document(tasks, {"runs": {"ppo/CartPole-v1": {"0": result(500.0)}}})
    assert "| ppo | CartPole-v1 | 1 | 500 | 498.0 | 501.0 | 500.0 (500.0) | mean >= 475 in 1,000 | **yes** |" in text
    assert "Not measured yet: sac/Pendulum-v1." in text
    assert all(f"- **{name}**" in text for name in ("zoo", "CleanRL", "XuanCe"))


def test_runs_are_added_to_what_another_benchmark_wrote_meanwhile(
    learning: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(task: Any, seed: int) -> dict[str, Any]:
        other = learning.load()
        other["runs"].setdefault("sac/Pendulum-v1", {})[str(seed)] = result(-150.0)
        learning.write_json("learning.json", other)
        return result(490.0 + seed)

    monkeypatch.setattr(learning, "run", run)
    monkeypatch.setattr(sys, "argv", ["learning.py"])
    assert learning.main() == 0
    runs = learning.load()["runs"]
    assert [r["mean_return"] for r in runs["ppo/CartPole-v1"].values()] == [490.0, 491.0]
    assert set(runs["sac/Pendulum-v1"]) == {"0", "1"}
    assert "490.5 ± 0.7 (490.0)" in learning.DOCUMENT.read_text()

    monkeypatch.setattr(learning, "run", lambda task, seed: result(100.0))
    assert learning.main() == 0  # all of it is there already
    monkeypatch.setattr(sys, "argv", ["learning.py", "--fresh"])
    assert learning.main() == 1
    assert [r["mean_return"] for r in learning.load()["runs"]["ppo/CartPole-v1"].values()] == [100.0, 100.0]
    monkeypatch.setattr(learning, "run", lambda task, seed: pytest.fail("--table runs nothing"))
    monkeypatch.setattr(sys, "argv", ["learning.py", "--table"])
    assert learning.main() == 1


def test_chosen_seeds_are_run_beside_others_and_leave_the_document_alone(
    learning: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "run", lambda task, seed: result(490.0 + seed))
    monkeypatch.setattr(sys, "argv", ["learning.py", "--seeds", "1"])
    assert learning.main() == 0
    assert set(learning.load()["runs"]["ppo/CartPole-v1"]) == {"1"}
    assert not learning.DOCUMENT.exists()


def test_an_overview_has_a_panel_per_task(
    learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the same agent and environment with other settings are a panel of their own, not seeds of the first."""
    import overview

    panels = []
    for agent, env, flags in (("ppo", "B-v0", ()), ("ppo", "B-v0", ("--agent.memory", "none")), ("d3qn", "A-v0", ())):
        task = learning.Task(agent, env, 1, 100, 2, flags=flags)
        for seed in range(2):
            log = RunLog(task.kept(seed), resume_step=0, loggers=())
            log.log({"kind": "eval", "eval/mean": 1.0 + seed + 10 * len(flags), "eval/ci95": 0.5}, 10)
            summary = {"agent": agent, "env": env, "seed": seed}
            (task.kept(seed) / "summary.json").write_text(json.dumps(summary))
        panels.append(overview.Panel(task.all_kept(), task.note))
    figures = []
    monkeypatch.setattr(overview, "save_figure", lambda figure, out: figures.append(figure) or out)
    learning.plot_overview(panels, tmp_path / "out.png", columns=2)
    titles = [axes.get_title(loc="left") for axes in figures[0].axes]
    assert titles == ["PPO on B-v0", "PPO on B-v0\nmemory none", "D3QN on A-v0"]
    highest = [max(max(line.get_ydata()) for line in axes.lines) for axes in figures[0].axes]
    assert highest == [2, 22, 2]
    with pytest.raises(ConfigError, match="no run to plot"):
        learning.plot_overview([], tmp_path / "out.png")
