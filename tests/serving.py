"""A server of a policy as a process of its own, for tests."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
JSON = {"content_type": "application/json"}


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

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes, Any]:
        """Status, body and headers of an answer."""
        self.connection.request(method, path, body, {name.replace("_", "-"): x for name, x in headers.items()})
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def act(self, value: Any) -> tuple[int, Any]:
        """Status and value of the answer to a request in JSON."""
        status, body, _ = self.ask("POST", "/act", json.dumps(value).encode(), **JSON)
        return status, json.loads(body)

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
