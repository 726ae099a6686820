"""``elegantrl submit``: mistakes are one sentence; with a real cluster, the output and the exit code of the job."""

from __future__ import annotations

import contextlib
import http.server
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import elegantrl
from elegantrl.cli.submit import check_reachable
from elegantrl.errors import ConfigError

Cli = Callable[..., Any]
TRAIN = ("--", "train", "ppo", "CartPole-v1")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--address", "http://127.0.0.1:1"), "there is no command for the cluster"),
        (TRAIN, "--address is missing"),
        (("--address", "127.0.0.1:8265", *TRAIN), "is not the address of a dashboard"),
        (("--address", "ray://127.0.0.1:10001", *TRAIN), "is not the address of a dashboard"),
        (("--address", "http://me:word@127.0.0.1:1", *TRAIN), "--address holds a password"),
        (("--address", "http://127.0.0.1:1", "--", "trian", "ppo"), "did you mean 'train'"),
        (("--address", "http://127.0.0.1:1", *TRAIN, "--run-dir", "s3://me:word@b"), "holds a password"),
        (("--address", "http://127.0.0.1:1", "--working-dir", "nowhere", *TRAIN), "is not a folder"),
        (("--address", "http://127.0.0.1:1", "--wait", *TRAIN), "did you mean '--no-wait'"),
    ],
)
def test_mistakes(cli: Cli, words: tuple[str, ...], sentence: str) -> None:
    outcome = cli("submit", *words)
    assert outcome.code == 2
    assert sentence in outcome.sentence
    assert "me:word" not in outcome.sentence


def test_an_address_where_nothing_listens(cli: Cli) -> None:
    outcome = cli("submit", "--address", f"http://127.0.0.1:{free_port()}", *TRAIN)
    assert outcome.code == 2
    assert "cannot be reached" in outcome.sentence and "is the cluster running" in outcome.sentence


def test_an_address_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elegantrl.cli.submit.REACH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ConfigError, match="timed out"):
        check_reachable(f"http://127.0.0.1:{silent.getsockname()[1]}")


class OtherServer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *args: Any) -> None:
        pass


def test_an_address_of_something_else() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ConfigError, match="not as a Ray dashboard does"):
            check_reachable(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_missing_extra(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    outcome = cli("submit", "--address", "http://127.0.0.1:1", *TRAIN)
    assert outcome.code == 2
    assert "pip install 'elegantrl[ray]'" in outcome.sentence


# ---- a real cluster that asks for a token


@pytest.fixture(scope="module")
def token_env() -> dict[str, str]:
    """Variables of a user who has the token of the cluster."""
    package = str(Path(elegantrl.__file__).parents[1])
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@pytest.fixture(scope="module")
def cluster(token_env: dict[str, str]) -> Iterator[str]:
    """The dashboard of a head that was started here and ends here; `ray stop` would end those of others too."""
    for attempt in range(3):  # on a busy machine a head may end because its parts take more than 15 s to start
        with head(token_env) as address:
            if address is not None:
                yield address
                return
        print(f"head {attempt} did not start")
    pytest.fail("no head of Ray started")


@contextlib.contextmanager
def head(env: dict[str, str]) -> Iterator[str | None]:
    """The address of a dashboard; None if the head ended while it started."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # short: Ray makes sockets below it
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    ports = {name: free_port() for name in names}
    agent = f"http://127.0.0.1:{ports['dashboard-agent-listen-port']}/api/local_raylet_healthz"
    command = ["ray", "start", "--head", "--block", "--num-cpus=1", "--object-store-memory=80000000"]
    command += [f"--temp-dir={folder}", "--node-ip-address=127.0.0.1", *(f"--{k}={v}" for k, v in ports.items())]
    log, address = folder / "head.txt", f"http://127.0.0.1:{ports['dashboard-port']}"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        # The dashboard answers before the node that runs jobs does; the manifests probe the same address.
        while process.poll() is None and not (is_reachable(address) and is_healthy(agent)):
            time.sleep(0.5)
        print(log.read_text())
        yield address if process.poll() is None else None
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def is_reachable(address: str) -> bool:
    try:
        check_reachable(address)
    except ConfigError:
        return False
    return True


def submit(address: str, env: dict[str, str], *words: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elegantrl", "submit", "--address", address, *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_a_job_runs_and_its_output_and_code_come_back(cluster: str, token_env: dict[str, str], tmp_path: Path) -> None:
    run = ("--max-steps", 256, "--run-dir", tmp_path / "run")
    done = submit(cluster, token_env, "--", "train", "a2c", "TensorCartPole", *run)
    assert done.returncode == 0, done.stderr
    assert "job raysubmit_" in done.stdout and "stop reason" in done.stdout
    assert done.stderr == ""
    assert (tmp_path / "run" / "summary.json").exists()

    failed = submit(cluster, token_env, "--", "train", "a2c", "NoSuchEnv-v0")
    assert failed.returncode == 2
    assert "NoSuchEnv-v0" in failed.stdout


@pytest.mark.slow
def test_code_of_the_users_own_is_sent(cluster: str, token_env: dict[str, str], tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "my_game.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as Env\n")
    words = ("train", "a2c", "my_game:Env", "--max-steps", 256, "--run-dir", tmp_path / "run")
    done = submit(cluster, token_env, "--working-dir", code, "--", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
def test_without_waiting(cluster: str, token_env: dict[str, str]) -> None:
    done = submit(cluster, token_env, "--no-wait", "--", "train", "a2c", "NoSuchEnv-v0")
    assert done.returncode == 0 and done.stdout.startswith("job raysubmit_") and len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_a_wrong_token_is_one_sentence(cluster: str, token_env: dict[str, str]) -> None:
    for other in ({"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}):
        refused = submit(cluster, {**token_env, **other}, *TRAIN)
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert "asks for another token" in line
        assert token_env["RAY_AUTH_TOKEN"] not in line
