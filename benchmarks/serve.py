"""How many requests does a served policy answer? One server process, one client process, loopback, keep-alive.

    python benchmarks/serve.py               # about half a minute
    python benchmarks/serve.py --seconds 2

The client sends prepared requests by plain sockets, so that it takes little of the time. With one connection a request
waits for the answer before it; with eight, one of each waits for the server. The limit beside it is /health of the
same server, which computes nothing: what HTTP alone takes. Other programs disturb requests per second; the processor
time of the server for each request they disturb less. Results go to results/serve.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import environment, write_json
from safetensors.numpy import save

from elegantrl.runtime.train import train

REPEATS = 3


class Server(NamedTuple):
    pid: int
    port: int


def request(path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def drive(port: int, message: bytes, num_connections: int, seconds: float) -> tuple[float, list[float]]:
    """Answers per second, and the time of each."""
    selector = selectors.DefaultSelector()
    sent: dict[socket.socket, float] = {}
    for _ in range(num_connections):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
        sent[connection] = time.perf_counter()
        connection.sendall(message)
    times: list[float] = []
    start = now = time.perf_counter()
    while now - start < seconds:
        for key, _ in selector.select():
            connection: Any = key.fileobj
            read_answer(connection)
            now = time.perf_counter()
            times.append(now - sent[connection])
            sent[connection] = now
            connection.sendall(message)
    for connection in sent:
        connection.close()
    return len(times) / (now - start), times


def read_answer(connection: socket.socket) -> None:
    """One whole answer, which must be a good one."""
    data = connection.recv(1 << 20)
    assert data.startswith(b"HTTP/1.1 200"), data
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    missing = int(found[1]) - len(body)
    while missing > 0:
        missing -= len(connection.recv(1 << 20))


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server: Server, what: str, message: bytes, rows: int, num_connections: int, seconds: float) -> Any:
    rates, times, before = [], [], processor_seconds(server.pid)
    for _ in range(REPEATS):
        rate, taken = drive(server.port, message, num_connections, seconds)
        rates.append(rate)
        times += taken
    low, high = (np.percentile(times, (50, 99)) * 1e3).tolist()
    cost = (processor_seconds(server.pid) - before) / len(times)
    result = {
        "what": what, "connections": num_connections, "rows": rows, "requests_per_second": rates,
        "median": statistics.median(rates), "rows_per_second": statistics.median(rates) * rows,
        "milliseconds_p50": low, "milliseconds_p99": high, "processor_microseconds": cost * 1e6,
    }  # fmt: skip
    print(
        f"{what}, {num_connections} connections: {result['median']:,.0f} requests/s"
        f" ({min(rates):,.0f} - {max(rates):,.0f}), {result['rows_per_second']:,.0f} rows/s,"
        f" p50 {low:.2f} ms, p99 {high:.2f} ms, {cost * 1e6:,.0f} us of the server's processor per request",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of each of the three repeats")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        train("ppo", "CartPole-v1", max_steps=2048, run_dir=f"{folder}/run")
        command = [sys.executable, "-m", "elegantrl.cli.main", "serve", f"{folder}/run", "--port", "0"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("/")[2].rpartition(":")[2])
            server = Server(process.pid, port)
            one = request("/act", json.dumps({"obs": [0.01, -0.02, 0.03, 0.04]}).encode())
            many = save({"obs": np.zeros((256, 4), np.float32)})
            batch = request("/act", many, "application/x-safetensors")
            results = [
                measure(server, "health", request("/health"), 0, 8, seconds),
                *(measure(server, "one observation, JSON", one, 1, n, seconds) for n in (1, 8)),
                measure(server, "256 observations, tensors", batch, 256, 8, seconds),
            ]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    print("written to", write_json("serve.json", {**environment(), "seconds": seconds, "results": results}))


if __name__ == "__main__":
    main()
