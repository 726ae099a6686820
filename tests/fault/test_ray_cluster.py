"""Clusters that cannot be used are refused in one sentence; the Ray of a run leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elegantrl.config.run import RunConfig
from elegantrl.errors import ConfigError, NodeLost, RoleDied
from elegantrl.runtime.restarts import Restarts

ROOT = Path(__file__).parents[2]
TRAIN = [sys.executable, "-m", "elegantrl", "train", "ppo", "CartPole-v1", "--executor", "ray"]


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [*TRAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT
    )


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:{port}", "no Ray cluster answers at 127.0.0.1:"),
        ("nowhere", "execute.address='nowhere' is neither HOST:PORT nor auto"),
        ("ray://127.0.0.1:10001", "execute.address='ray://127.0.0.1:10001' is not HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, sentence: str
) -> None:
    monkeypatch.setattr("elegantrl.execute.ray_cluster.ray.is_initialized", lambda: False)
    address = address.format(port=closed_port())
    outcome = cli(
        "train", "ppo", "CartPole-v1", "--executor", "ray", "--address", address, "--run-dir", tmp_path / "run"
    )
    assert outcome.code == 2 and outcome.sentence.startswith(sentence)
    assert not (tmp_path / "run").exists()


def test_an_address_needs_ray() -> None:
    data = {"agent": {"name": "ppo"}, "env": {"id": "CartPole-v1"}, "execute": {"address": "auto"}}
    with pytest.raises(ConfigError, match=r"execute\.address='auto' is that of a Ray cluster; add --executor ray"):
        RunConfig.from_dict(data)


def test_an_address_in_a_file_is_not_followed(cli: Callable[..., Any], tmp_path: Path) -> None:
    data = {"agent": {"name": "ppo"}, "env": {"id": "CartPole-v1"}, "execute": {"executor": "ray", "address": "a:1"}}
    text = RunConfig.from_dict(data).to_yaml()
    (tmp_path / "config.yaml").write_text(text)
    outcome = cli("train", "--config", tmp_path / "config.yaml")
    assert outcome.code == 2 and "names the Ray cluster a:1, whose nodes may run code here" in outcome.sentence
    outcome = cli("train", "ppo", "CartPole-v1", "--run-dir", tmp_path, "--resume")
    assert outcome.code == 2 and "add --executor ray --address a:1 if you trust it" in outcome.sentence


def test_a_lost_node_costs_one_restart_of_the_budget() -> None:
    said: list[str] = []
    restarts = Restarts(2, said.append)
    for death in (NodeLost("a", "n1"), NodeLost("b", "n1"), NodeLost("c", "n1"), RoleDied("d")):
        restarts.count_restart(f"worker {death}", death)
    assert restarts.counts.restarts == 4
    assert said[0].endswith("(1 of 2 within 10 minutes)") and said[2] == "worker c: c; restarted"
    assert said[3].endswith("(2 of 2 within 10 minutes)")


def processes_of(folder: str) -> list[str]:
    """Processes of the Ray whose folder is named in their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_text().replace("\0", " ")
        except OSError:
            continue
        if folder in text:
            found.append(text[:200])
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_commits_and_leaves_nothing(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        run = start("--run-dir", str(tmp_path / "run"), "--max-steps", "100000000", TMPDIR=folder)
        end = time.monotonic() + 600
        while not list((tmp_path / "run").glob("metrics.jsonl")) and time.monotonic() < end and run.poll() is None:
            time.sleep(0.2)
        time.sleep(3.0)  # some iterations
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=300)
        assert run.returncode == 130, err
        assert "(raylet)" not in out + err and "WARNING" not in err and err == ""
        assert "worker process of Ray" in out and list((tmp_path / "run" / "commits").iterdir())
        assert os.listdir(folder) == [] and processes_of(folder) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_with_a_token(tmp_path: Path) -> None:
    """A run with the token works, and one without it is refused."""
    ray = str(Path(sys.executable).parent / "ray")
    port, secret = closed_port(), "a" * 64
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secret, "PYTHONPATH": str(ROOT)}
        head = subprocess.Popen(
            [ray, "start", "--head", "--block", "--port", str(port), "--num-cpus", "4", "--temp-dir", folder,
             "--include-dashboard", "false", "--system-config", '{"worker_niceness": 0}'],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            end = time.monotonic() + 300
            while time.monotonic() < end:
                try:
                    socket.create_connection(("127.0.0.1", port), 1.0).close()
                    break
                except OSError:
                    time.sleep(0.5)
            time.sleep(10.0)
            words = ("--address", f"127.0.0.1:{port}", "--max-steps", "2000", "--eval.interval", "1000000")
            bad = start(*words, "--run-dir", str(tmp_path / "bad"), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="b" * 64)
            _, err = bad.communicate(timeout=300)
            assert bad.returncode == 2 and "RAY_AUTH_TOKEN" in err and len(err.splitlines()) == 1, err
            good = start(*words, "--run-dir", str(tmp_path / "good"), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secret)
            _, err = good.communicate(timeout=600)
            assert good.returncode == 0, err
        finally:
            head.terminate()
            head.wait(timeout=60)
