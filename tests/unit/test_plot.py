from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from PIL import Image

from elegantrl.config.resolve import resolve_config
from elegantrl.errors import ConfigError
from elegantrl.report import draw, plot, style
from elegantrl.report.plot import plot_run, plot_runs
from elegantrl.report.runs import GRID_POINTS, Curve, combine, group_runs, read_run
from elegantrl.store.runlog import RunLog


def make_run(
    folder: Path,
    means: list[float],
    *,
    agent: str | None = "PPO",
    env: str = "CartPole-v1",
    seed: int = 0,
    train_rows: int = 20,
) -> Path:
    log = RunLog(folder, resume_step=0, loggers=())
    for i in range(train_rows):
        log.log({"kind": "train", "train/return": 5.0 * i, "wall_seconds": 2.0 * i}, 1000 * (i + 1))
    for i, mean in enumerate(means):
        log.log({"kind": "eval", "eval/mean": mean, "eval/std": 9.0, "eval/ci95": 4.0}, 10_000 * (i + 1))
    log.close()
    if agent:
        summary = {"agent": agent, "env": env, "seed": seed, "target_return": 475.0, "best_return": 1.0}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures as they were saved."""
    saved: list[Figure] = []
    save = plot.save_figure
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: saved.append(figure) or save(figure, path))
    return saved


def texts(figure: Figure) -> list[str]:
    axes = figure.axes[0]
    legend = [text.get_text() for box in figure.legends for text in box.get_texts()]
    return [axes.get_title(loc="left").strip(), *(text.get_text() for text in axes.texts), *legend]


def test_a_run_is_drawn_under_both_documented_names(tmp_path: Path, figures: list[Figure]) -> None:
    path = plot_run(make_run(tmp_path / "run", [100.0, 300.0, 250.0]))
    assert path == tmp_path / "run" / "plot_learning_curve.jpg"
    for name in ("plot_learning_curve.jpg", "LearningCurve.jpg"):
        with Image.open(tmp_path / "run" / name) as image:
            assert image.format == "JPEG" and image.width >= 1200
    assert texts(figures[0]) == [
        "PPO on CartPole-v1",
        "seed 0, 30k steps in 38 s",
        "best 300",
        "target\n475",
        "training episodes",
        "evaluation, 95 % band",
    ]
    assert figures[0].axes[0].get_xlim()[0] == 0
    training, evaluation, best, target = figures[0].axes[0].lines
    assert evaluation.get_xydata().tolist() == [[10_000, 100], [20_000, 300], [30_000, 250]]
    assert best.get_xydata().tolist() == [[20_000, 300]]
    assert set(target.get_ydata()) == {475.0}
    assert len(training.get_xdata()) == 20 and training.get_linewidth() < evaluation.get_linewidth()
    [band] = figures[0].axes[0].collections
    assert band.get_paths()[0].get_extents().get_points()[:, 1].tolist() == [96.0, 304.0]


@pytest.mark.parametrize(
    ("means", "points"),
    [([], 0), ([1.0], 1), ([1.0, 2.0], 2), ([math.nan], 0), ([1.0, math.nan, 3.0, math.inf], 2)],
)
@pytest.mark.parametrize("train_rows", [0, 1, 5])
def test_few_points_and_nans_are_drawn_without_a_warning(
    tmp_path: Path, figures: list[Figure], means: list[float], points: int, train_rows: int
) -> None:
    plot_run(make_run(tmp_path, means, train_rows=train_rows), tmp_path / "out.png")
    assert read_run(tmp_path).evaluation.steps.size == points
    assert ("evaluation, 95 % band" in texts(figures[0])) == (points > 0)
    assert ("training episodes" in texts(figures[0])) == (train_rows > 0)
    assert ("no evaluation yet" in texts(figures[0])) == (points == train_rows == 0)


def test_title_falls_back_to_the_config_and_then_to_the_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run_7", [1.0], agent=None)
    assert read_run(run).title == "run_7"
    config = {"agent": {"name": "SAC"}, "env": {"id": "Ant-v5"}, "train": {"seed": 4, "target_return": 6000.0}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    read = read_run(run)
    assert (read.title, read.seed, read.target) == ("SAC on Ant-v5", 4, 6000.0)


@pytest.mark.parametrize(
    ("name", "text"), [("summary.json", "{"), ("config.yaml", "a: ["), ("config.yaml", "agent: 3"), ("config.yaml", "")]
)
def test_a_file_that_does_not_describe_a_run_is_named(tmp_path: Path, name: str, text: str) -> None:
    make_run(tmp_path, [1.0], agent=None)
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        read_run(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is not a run folder"):
        plot_run(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no run to plot"):
        plot_runs([], tmp_path / "out.png")


@pytest.mark.parametrize(
    ("suffix", "magic"),
    [("png", b"\x89PNG"), ("jpg", b"\xff\xd8"), ("JPEG", b"\xff\xd8"), ("pdf", b"%PDF"), ("svg", b"<?xml")],
)
def test_the_suffix_decides_the_format(tmp_path: Path, suffix: str, magic: bytes) -> None:
    run = make_run(tmp_path, [1.0, 2.0], train_rows=2)
    assert plot_run(run, tmp_path / f"out.{suffix}").read_bytes().startswith(magic)


@pytest.mark.parametrize("name", ["out.gif", "out", "out.pkl"])
def test_an_unknown_suffix_is_refused_and_writes_nothing(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run", [1.0])
    with pytest.raises(ConfigError, match=f"{name} must end in one of .jpg, .pdf, .png, .svg"):
        plot_run(run, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_seeds_become_one_curve_and_groups_get_colours(tmp_path: Path, figures: list[Figure]) -> None:
    seeds = [make_run(tmp_path / f"p{i}", [10.0 * i, 20.0 * i], seed=i) for i in range(5)]
    other = make_run(tmp_path / "d0", [1.0, 2.0], agent="DQN")
    plot_runs([*seeds, other], tmp_path / "out.png")
    assert texts(figures[0]) == [
        "CartPole-v1",
        draw.SEVERAL_SEEDS,
        "target\n475",
        "PPO (5 seeds)",
        "DQN (1 seed)",
    ]
    *thin, ppo, dqn, _ = figures[0].axes[0].lines
    assert [line.get_ydata().tolist() for line in thin[::2]] == [[10.0 * i, 20.0 * i] for i in range(5)]
    assert [line.get_xydata().tolist() for line in thin[1::2]] == [[[20_000, 20.0 * i]] for i in range(5)]  # the dots
    assert all(line.get_color() == ppo.get_color() and line.get_linewidth() <= ppo.get_linewidth() for line in thin)
    assert ppo.get_ydata().tolist() == [20.0, 40.0]
    assert dqn.get_ydata().tolist() == [1.0, 2.0]
    assert ppo.get_color() != dqn.get_color()


def test_runs_of_several_environments_are_named_in_full(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [make_run(tmp_path / env, [1.0, 2.0], env=env) for env in ("A-v0", "B-v0")]
    plot_runs(runs, tmp_path / "out.png")
    assert texts(figures[0]) == [
        "Learning curves",
        "evaluation mean, 95 % band",
        "target\n475",
        "PPO on A-v0 (1 seed)",
        "PPO on B-v0 (1 seed)",
    ]


def with_config(folder: Path, seed: int = 0, env: str = "CartPole-v1", **agent: object) -> Path:
    """Give a run a config with these settings of the agent."""
    config = resolve_config("ppo", env, {"agent": agent, "train": {"seed": seed}})[0]
    (folder / "config.yaml").write_text(config.to_yaml())
    return folder


def test_only_runs_that_differ_in_the_seed_alone_are_pooled(tmp_path: Path, figures: list[Figure]) -> None:
    # N5: runs with different settings were pooled as seeds.
    runs = [
        with_config(make_run(tmp_path / f"{lr}-{seed}", [lr * 1e5, 200.0], agent="ppo", seed=seed), seed, lr=lr)
        for lr in (1e-3, 3e-4)
        for seed in range(3)
    ]
    groups = group_runs([read_run(run) for run in runs])
    assert [(group.label, len(group.runs)) for group in groups] == [("PPO, lr=0.001", 3), ("PPO, lr=0.0003", 3)]
    plot_runs(runs, tmp_path / "out.png")
    assert texts(figures[0])[-2:] == ["PPO, lr=0.001 (3 seeds)", "PPO, lr=0.0003 (3 seeds)"]


def test_many_differences_are_counted_and_other_agents_are_not_compared(tmp_path: Path) -> None:
    others = {"gamma": 0.9, "clip": 0.1, "lr": 1e-3, "hidden": [8], "horizon": 8}
    first = with_config(make_run(tmp_path / "a", [1.0], agent="ppo"), **others)
    second = with_config(make_run(tmp_path / "b", [1.0], agent="ppo", seed=1), 1)
    third = make_run(tmp_path / "c", [1.0], agent="dqn")
    labels = [group.label for group in group_runs([read_run(run) for run in (first, second, third)])]
    assert labels[0].startswith("PPO, clip=0.1, gamma=0.9, ") and labels[0].endswith(" more")
    assert labels[2] == "DQN"


def test_where_a_run_stopped_and_where_it_ran_make_no_other_group(tmp_path: Path) -> None:
    runs = []
    for i, train in enumerate(({"max_steps": 10}, {"max_steps": 20, "target_return": 3.0})):
        config = resolve_config("ppo", "CartPole-v1", {"train": {"seed": i, **train}})[0]
        runs.append(make_run(tmp_path / str(i), [1.0], agent="ppo", seed=i))
        (runs[-1] / "config.yaml").write_text(config.to_yaml())
    assert [group.label for group in group_runs([read_run(run) for run in runs])] == ["PPO"]


@pytest.mark.parametrize("name", ["$\\frac{1}{$", "x" * 500, "a\nb\x1b[31m"])
def test_names_of_a_folder_are_labels_and_nothing_else(tmp_path: Path, figures: list[Figure], name: str) -> None:
    plot_runs([make_run(tmp_path / "run", [1.0, 2.0], agent=name, env=name)], tmp_path / "out.png")
    assert all(len(text) < 200 and "\x1b" not in text for text in texts(figures[0]))


def curve(steps: list[float], mean: list[float]) -> Curve:
    return Curve(*(np.array(row, np.float64) for row in (steps, mean, mean, mean)))


def test_seeds_are_compared_where_all_of_them_have_been() -> None:
    combined = combine([curve([0, 10, 20], [0, 10, 20]), curve([5, 15], [7, 17])])
    assert combined.steps.tolist() == [5, 10, 15, 20]
    assert combined.mean.tolist() == [6, 11, 16, 18.5]  # the second run ended at 15 with 17
    assert (combined.low == [5, 10, 15, 17]).all() and (combined.high == [7, 12, 17, 20]).all()


def test_the_bootstrap_band_covers_the_mean_and_narrows_with_seeds() -> None:
    rng = np.random.default_rng(0)

    def width(seeds: int) -> float:
        combined = combine([curve([0, 1], [value, value]) for value in rng.normal(size=seeds)])
        assert (combined.low <= combined.mean).all() and (combined.mean <= combined.high).all()
        return float((combined.high - combined.low)[0])

    assert 0 < width(64) < width(8) / 1.5


def test_combining_is_repeatable_and_bounded() -> None:
    rng = np.random.default_rng(1)
    curves = [curve(sorted(rng.uniform(0, 100, 500)), list(rng.normal(size=500))) for _ in range(9)]
    first, second = combine(curves), combine(curves)
    np.testing.assert_array_equal(first.low, second.low)
    assert first.steps.size <= GRID_POINTS
    assert combine([]).steps.size == 0


def test_numbers_read_well() -> None:
    values = [0, 500, 20_000, 100_352, 1_500_000, 3e9]
    assert [style.short_number(value) for value in values] == ["0", "500", "20k", "100.4k", "1.5M", "3G"]
    assert [style.duration(seconds) for seconds in (41.2, 600, 36_000)] == ["41 s", "10 min", "10.0 h"]
    assert [style.plain_number(value) for value in (500.0, -152.34, 12_000.0)] == ["500", "-152.3", "12,000"]


def test_the_callers_matplotlib_stays_as_it_is(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    plot_run(make_run(tmp_path, [1.0, 2.0]))
    assert dict(matplotlib.rcParams) == before
