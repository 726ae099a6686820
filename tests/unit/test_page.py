"""The page of a run: what it holds, how it is served, and that a browser draws and updates it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import elegantrl
from elegantrl.errors import CheckpointError, ConfigError
from elegantrl.population.config import PopulationConfig
from elegantrl.population.events import Committed, Evaluated, Exploited, Promoted, Spawned
from elegantrl.population.fold import PopulationState
from elegantrl.population.log import read_population
from elegantrl.population.page import population_page
from elegantrl.population.report import read_page
from elegantrl.report.compare_page import compare_page
from elegantrl.report.lineage import plot_lineage
from elegantrl.report.live import PageServer
from elegantrl.report.page import MAX_POINTS, Chart, Copy, Line, Page, Table, render, thinned, to_json
from elegantrl.report.run_page import run_page
from elegantrl.report.style import COLOURS

CHROMIUM = shutil.which("chromium")
BROWSER = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
)


def write_run(folder: Path, steps: int, scale: float = 1.0, **config: Any) -> None:
    """Evaluations are ``scale`` times a fifth of the step; ``config`` has settings of the agent, and the seed."""
    folder.mkdir(exist_ok=True)
    if config:
        seed = config.pop("seed")
        about = {"agent": {"name": "ppo", **config}, "env": {"id": "CartPole-v1"}, "train": {"seed": seed}}
        (folder / "config.yaml").write_text(json.dumps(about))
    rows: list[dict[str, Any]] = []
    for step in range(100, steps + 1, 100):
        rows.append({"kind": "train", "env_steps": step, "train/return": step / 10, "time/steps_per_second": 50.0})
        rows[-1] |= {"loss/policy": -0.5, "memory_mb/learner": 80.0, "wall_seconds": step / 50}
        rows.append({"kind": "eval", "env_steps": step, "eval/mean": scale * step / 5, "eval/ci95": 1.0})
        rows[-1]["wall_seconds"] = step / 50
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", 300)
    return tmp_path / "run"


@contextlib.contextmanager
def served(read: Callable[[], Page]) -> Iterator[PageServer]:
    with PageServer(read, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def serve(run: Path) -> Iterator[PageServer]:
    with served(lambda: run_page(run)) as server:
        yield server


def test_the_page_of_a_run(run: Path) -> None:
    page = run_page(run)
    assert page.facts["environment steps"] == "300" and page.facts["best return"] == "60.0"
    charts = {chart.title: chart for chart in page.charts}
    evaluation, training = charts["Return"].lines
    assert (list(evaluation.x), list(evaluation.y)) == ([100, 200, 300], [20, 40, 60])
    assert list(evaluation.low) == [19, 39, 59] and list(training.y) == [10, 20, 30]
    assert [line.name for line in charts["Losses"].lines] == ["policy"]
    assert [line.name for line in charts["Memory"].lines] == ["learner"]
    assert "running" in page.status
    assert page.facts["seconds"] == "6"
    summary = {"stop_reason": "max_steps", "env_steps": 320, "best_return": 61.0, "wall_seconds": 8.2}
    (run / "summary.json").write_text(json.dumps(summary))
    page = run_page(run)
    assert page.status == "run run, ended by max steps" and page.facts["best return"] == "61.0"
    assert page.facts["seconds"] == "8"  # with the last evaluation, which has no row of its own


# ---- several runs


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Three seeds of one setting, and one run with another learning rate."""
    for seed, scale in enumerate((1.0, 2.0, 3.0)):
        write_run(tmp_path / f"a{seed}", 300, scale, lr=0.001, seed=seed)
    write_run(tmp_path / "b", 200, 0.5, lr=0.002, seed=0)
    return [tmp_path / name for name in ("a0", "b", "a1", "a2")]


def test_several_runs_are_compared_by_groups_of_seeds(runs: list[Path]) -> None:
    page = compare_page(runs)
    assert page.title == "CartPole-v1" and page.status.startswith("4 runs with 2 different settings")
    results, differing = page.tables
    assert results.colours == [COLOURS[0], COLOURS[1]]
    assert list(results.rows[0]) == [
        *("PPO, lr=0.001", "0, 1, 2", "120.0", "60.0 .. 180.0", "120.0"),  # of the final 60, 120 and 180
        *("300", "6 s", "50"),
    ]
    assert results.rows[1][:4] == ["PPO, lr=0.002", "0", "20.0", "19.0 .. 21.0"]
    assert differing.marked and differing.rows == [["agent.lr", "0.001", "0.002"]]
    assert page.settings["agent.name"] == "ppo" and "agent.lr" not in page.settings
    charts = {chart.title: chart for chart in page.charts}
    assert [*charts] == ["Return", "Return over time", "Speed", "Loss: policy"]
    lines = charts["Return"].lines
    assert [(line.name, line.thin) for line in lines] == [
        *[("PPO, lr=0.001 (3 seeds)", True)] * 3,
        *[("PPO, lr=0.001 (3 seeds)", False), ("PPO, lr=0.002 (1 seed)", False)],
    ]
    assert (list(lines[3].x), list(lines[3].y)) == ([100, 200, 300], [40, 80, 120])
    assert list(lines[3].low) == [20, 40, 60] and list(lines[3].high) == [60, 120, 180]
    assert (list(lines[4].y), list(lines[4].low)) == ([10, 20], [9, 19])
    assert list(charts["Return over time"].lines[3].x) == [2, 4, 6]
    speed = charts["Speed"].lines
    assert [(line.colour, line.thin, line.low) for line in speed[3:]] == [
        (COLOURS[0], False, ()),
        (COLOURS[1], False, ()),
    ]
    assert all(line.thin for line in speed[:3]) and list(speed[3].y) == [50.0] * 3


def test_a_page_holds_the_video_of_a_run_and_updates_do_not(runs: list[Path]) -> None:
    (runs[0] / "demo.gif").write_bytes(b"GIF89a of a run")
    page = compare_page(runs)
    assert [(film.title, film.uri[:25]) for film in page.films] == [("PPO, lr=0.001", "data:image/gif;base64,R0l")]
    assert "data:image/gif;base64," in render(page) and json.loads(to_json(page))["films"] is None
    (runs[0] / "demo.mp4").write_bytes(b"a film")
    assert run_page(runs[0]).films[0].uri == "data:video/mp4;base64,YSBmaWxt"


def test_report_and_watch_take_several_runs(runs: list[Path], cli: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "cmp.html"
    assert cli("report", *runs, "--out", out).code == 0 and "PPO, lr=0.001 (3 seeds)" in out.read_text()
    assert cli("report", runs[0], tmp_path / "no", "--out", out).code == 4
    assert "FOLDER is missing" in cli("report", "--out", out).sentence
    assert elegantrl.write_report(runs[0], out) == out and "PPO on CartPole-v1" in out.read_text()
    with served(lambda: read_page([str(run) for run in runs])) as server:
        assert json.loads(ask(server, "/data.json")[1])["title"] == "CartPole-v1"


def test_a_population_has_a_page_of_its_own(runs: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("elegantrl.population.report.has_population", lambda storage: True)
    monkeypatch.setattr("elegantrl.population.report.read_population", lambda storage: made_population())
    assert read_page([str(runs[0])]).title == "Generational population on CartPole-v1"
    with pytest.raises(ConfigError, match="a population has a page of its own"):
        read_page([str(run) for run in runs])


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_draws_a_comparison(runs: list[Path], tmp_path: Path) -> None:
    with Image.new("RGB", (40, 30), "red") as picture:
        picture.save(runs[0] / "demo.gif")
    out = elegantrl.write_report(runs, tmp_path / "cmp.html")
    command = [str(CHROMIUM), *BROWSER.split(), f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", out.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert shown.count("<svg") == 4 and shown.count("<polygon") == 4  # bands of two groups in two charts
    assert shown.count('<tr class="marked">') == 1 and '<img alt="PPO, lr=0.001"' in shown


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no metrics.jsonl; is it a run folder"):
        run_page(tmp_path)


def test_numbers_that_are_not_finite_become_null() -> None:
    line = Line("a", [0.0, 1.0], [float("nan"), float("inf")])
    data = json.loads(to_json(Page("t", "s", {}, charts=[Chart("c", "x", "y", [line])])))
    assert data["charts"][0]["lines"][0]["y"] == [None, None]


def test_no_text_of_the_data_ends_the_script() -> None:
    page = Page("</script><script>alert(1)</script>", "<!--", {"a": "b"}, tables=[Table("t", ["<b>"], [["</td>"]])])
    html = render(page)
    inside = re.search(r'id="data">(.*?)</script>', html, re.S)
    assert inside and json.loads(inside[1])["title"] == page.title  # the first end is that of the data


def test_long_lines_keep_their_ends() -> None:
    values = list(range(12_345))
    kept = thinned(values)
    assert len(kept) == MAX_POINTS and kept[0] == 0 and kept[-1] == 12_344 and kept == sorted(set(kept))
    assert thinned([1, 2]) == [1, 2]


def ask(server: PageServer, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_server_reads_the_folder_for_each_request(serve: PageServer, run: Path) -> None:
    assert json.loads(ask(serve, "/data.json")[1])["facts"]["environment steps"] == "300"
    write_run(run, 500)
    assert json.loads(ask(serve, "/data.json")[1])["facts"]["environment steps"] == "500"
    assert "const UPDATES = true" in ask(serve, "/")[1]


def test_the_server_gives_nothing_else(serve: PageServer, run: Path) -> None:
    assert ask(serve, "/metrics.jsonl")[0] == 404 and ask(serve, "/../../etc/passwd")[0] == 404
    assert ask(serve, "/", Host="attacker.example:80")[0] == 403  # a name that was pointed at this machine
    shutil.rmtree(run)
    code, text = ask(serve, "/data.json")
    assert code == 500 and "is it a run folder" in text


def test_a_port_in_use_is_one_sentence(serve: PageServer) -> None:
    with pytest.raises(ConfigError, match="choose another port, or 0 for any"):
        PageServer(lambda: Page("", "", {}), "127.0.0.1", serve.server_address[1])


def test_report_writes_one_file(run: Path, cli: Callable[..., Any]) -> None:
    assert cli("report", run, "--out", run / "report.html").code == 0
    html = (run / "report.html").read_text()
    assert "const UPDATES = false" in html and not re.search(r'(src|href)="http', html)
    assert cli("report", run, "--out", run).sentence.endswith("is a folder; name a file in it")
    assert cli("watch", run / "no").code == 4


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_draws_the_page_and_updates_it(run: Path, tmp_path: Path) -> None:
    """The browser writes down what it shows after ten seconds of its own clock; the run continues after the first."""
    reads = itertools.count()

    def read() -> Page:
        if next(reads) > 0:
            write_run(run, 700)
        return run_page(run)

    shown = browse(read, tmp_path)
    assert "<b>700</b>" in shown and 'data-updates="' in shown, shown[-2000:]
    assert shown.count("<svg") == 4  # return, speed, losses, memory


def browse(read: Callable[[], Page], folder: Path) -> str:
    """What a browser shows of a live page after ten seconds of its own clock."""
    profile = f"--user-data-dir={folder / 'browser'}"
    with served(read) as server:
        command = [str(CHROMIUM), *BROWSER.split(), profile, "--virtual-time-budget=10000", "--dump-dom"]
        return subprocess.run([*command, server.url], capture_output=True, text=True, timeout=120).stdout


def made_population() -> PopulationState:
    """Two members; the second diverges in its first period and continues as a copy of the first."""
    settings = {"mode": "generational", "members": 2, "periods": 2, "period_steps": 100}
    config = PopulationConfig(env="CartPole-v1", agents=("ppo", "dqn"), **settings)  # type: ignore[arg-type]
    events = [
        Spawned("m000", "ppo", {"lr": 1e-3}),
        Spawned("m001", "dqn", {"lr": 1e-2}),
        Committed("m000", 0, 0, "runs/m000-0000", 100),
        Evaluated("m000", 0, 50.0),
        Evaluated("m001", 0, None),
        Exploited("m001", 1, "m000", "runs/m000-0000", "ppo", {"lr": 2e-3}),
        Committed("m001", 1, 0, "runs/m001-0001", 200),
        Evaluated("m001", 1, 80.0),
        Promoted("m001", 1, 75.0),
    ]
    return PopulationState(config).apply_all(events)


def test_the_page_of_a_population() -> None:
    page = population_page(made_population(), "here")
    assert page.facts["champion's return"] == "75.0" and page.facts["champion"] == "m001, ppo"
    assert page.tables[0].rows[0][:4] == ["1", "75.0", "m001", "ppo"]
    scores, rates = page.charts
    assert [(list(line.x), list(line.y)) for line in scores.lines] == [([100], [50.0]), ([200], [80.0])]
    assert [(line.name, list(line.x)) for line in rates.lines] == [("ppo", [100, 200])]
    assert page.lineage is not None and page.lineage.copies == [Copy(100, 0, 1)]
    spans = [(span.row, span.start, span.end, span.group) for span in page.lineage.spans]
    assert spans == [(0, 0, 100, "ppo"), (1, 100, 200, "ppo")]
    assert "m001, period 2: ppo, 80.0; lr 0.002" in page.lineage.spans[1].label


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_follows_a_population_that_is_running(tmp_path: Path) -> None:
    """Each look of the browser waits until the population has gone on since the one before."""
    folder, seen = tmp_path / "p", [0]

    def wait() -> PopulationState:
        while True:
            assert child.poll() is None, "the population ended before the browser saw it run"
            if (folder / "population.yaml").exists() and (state := read_population(folder)).num_results > seen[-1]:
                seen.append(state.num_results)
                return state
            time.sleep(0.02)

    words = "evolve TensorCartPole --agents ppo --members 2 --periods 500 --period-steps 512 --episodes 1"
    command = [sys.executable, "-m", "elegantrl", *words.split(), "--executor", "inline", "--run-dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        try:
            wait()
            shown = browse(lambda: population_page(wait(), str(folder)), tmp_path)
        finally:
            child.terminate()
    assert len(seen) >= 4 and "Tournament population on TensorCartPole" in shown
    assert "jobs running or waiting" in shown and "Leaderboard" in shown and 'data-updates="' in shown
    assert f"<b>{seen[-1]}</b>" in shown and shown.count("<svg") == 3  # scores, learning rates, lineage


def test_the_lineage_as_a_picture(tmp_path: Path) -> None:
    lineage = population_page(made_population(), "here").lineage
    assert lineage is not None
    assert plot_lineage(lineage, "a title", tmp_path / "lineage.png").stat().st_size > 5000
