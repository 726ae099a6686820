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

from elegantrl.errors import CheckpointError, ConfigError
from elegantrl.population.config import PopulationConfig
from elegantrl.population.events import Committed, Evaluated, Exploited, Promoted, Spawned
from elegantrl.population.fold import PopulationState
from elegantrl.population.log import read_population
from elegantrl.population.page import population_page
from elegantrl.report.lineage import plot_lineage
from elegantrl.report.live import PageServer
from elegantrl.report.page import MAX_POINTS, Chart, Copy, Line, Page, Table, render, thinned, to_json
from elegantrl.report.run_page import run_page

CHROMIUM = shutil.which("chromium")


def write_run(folder: Path, steps: int) -> None:
    folder.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for step in range(100, steps + 1, 100):
        rows.append({"kind": "train", "env_steps": step, "train/return": step / 10, "time/steps_per_second": 50.0})
        rows[-1] |= {"loss/policy": -0.5, "memory_mb/learner": 80.0, "wall_seconds": step / 50}
        rows.append({"kind": "eval", "env_steps": step, "eval/mean": step / 5, "eval/ci95": 1.0})
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
    (run / "summary.json").write_text(json.dumps({"stop_reason": "max_steps", "env_steps": 320, "best_return": 61.0}))
    page = run_page(run)
    assert page.status.endswith("ended: max_steps") and page.facts["best return"] == "61.0"


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
    options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = f"--disable-component-update --disable-sync --user-data-dir={folder / 'browser'}"
    with served(read) as server:
        command = [str(CHROMIUM), *options.split(), *more.split(), "--virtual-time-budget=10000", "--dump-dom"]
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
