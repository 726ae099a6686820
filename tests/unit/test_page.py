"""The page of a run: what it holds, how it is served, and that a browser draws and updates it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elegantrl.errors import CheckpointError, ConfigError
from elegantrl.report.live import PageServer
from elegantrl.report.page import MAX_POINTS, Chart, Line, Page, Table, render, thinned, to_json
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
    assert cli("report", run).code == 0
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

    options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = f"--disable-component-update --disable-sync --user-data-dir={tmp_path / 'browser'}"
    with served(read) as server:
        command = [str(CHROMIUM), *options.split(), *more.split(), "--virtual-time-budget=10000", "--dump-dom"]
        done = subprocess.run([*command, server.url], capture_output=True, text=True, timeout=120)
    assert "<b>700</b>" in done.stdout and 'data-updates="' in done.stdout, done.stdout[-2000:]
    assert done.stdout.count("<svg") == 4  # return, speed, losses, memory
