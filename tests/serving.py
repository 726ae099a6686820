"""Servers of a policy, in a thread or as a process of their own, for tests."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from elegantrl.deploy.app import Limits
from elegantrl.deploy.serve import PolicyServer
from elegantrl.store.trained import TrainedPolicy

ROOT = Path(__file__).parents[1]
JSON, TENSORS = {"content-type": "application/json"}, {"content-type": "application/x-safetensors"}


class Served:
    """``elegantrl serve`` with these words, ready for requests."""

    def __init__(self, *words: Any, **environment: str):
        command = [sys.executable, "-m", "elegantrl.cli.main", "serve", *map(str, words)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.match(r"http://\S+:(\d+)/ serves ", self.line)
        if found is None:
            raise AssertionError(self.process.communicate()[1])
        self.port = int(found[1])
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def act(self, value: Any) -> int:
        """The status of the answer to a request in JSON."""
        self.connection.request("POST", "/act", json.dumps(value).encode(), JSON)
        answer = self.connection.getresponse()
        answer.read()
        return answer.status

    def memory(self) -> int:
        """Bytes of the process."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) * 1024

    def stop(self, number: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.connection.close()
        self.process.send_signal(number)
        self.out, self.err = self.process.communicate(timeout=30)
        return self.process.returncode


class Client:
    """Requests to a server in a thread of this process."""

    def __init__(self, server: PolicyServer, trained: TrainedPolicy):
        self.server, self.trained = server, trained
        self.port = server.socket.getsockname()[1]
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Any = JSON) -> tuple[int, bytes, Any]:
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def act(self, value: Any) -> Any:
        status, body, _ = self.ask("POST", "/act", json.dumps(value).encode())
        assert status == 200, body
        return json.loads(body)

    def refused(self, body: bytes, status: int = 400, headers: Any = JSON) -> str:
        """The sentence of a refusal."""
        found, answer, _ = self.ask("POST", "/act", body, headers)
        assert found == status, answer
        (sentence,) = json.loads(answer).values()
        assert "\n" not in sentence
        return sentence  # type: ignore[no-any-return]


@contextmanager
def serving(trained: TrainedPolicy, **limits: Any) -> Iterator[Client]:
    with PolicyServer(trained, "127.0.0.1", 0, Limits(**limits)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        client = Client(server, trained)
        try:
            yield client
        finally:
            client.connection.close()
            server.stop()
            thread.join(20)
            assert not thread.is_alive()


def plain(obs: Any) -> Any:
    """An observation as a value of JSON."""
    if isinstance(obs, dict):
        return {key: plain(part) for key, part in obs.items()}
    return [plain(part) for part in obs] if isinstance(obs, tuple) else np.asarray(obs).tolist()
