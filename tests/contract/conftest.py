"""A run folder to store, and a real object store that runs beside the tests."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest


@pytest.fixture(scope="module")
def object_store() -> Iterator[str]:
    """The endpoint of an S3 server in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answers(port):
            assert server.poll() is None, "the object store ended"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10):
        return True
    return False


@pytest.fixture(scope="module")
def s3(object_store: str) -> Iterator[Any]:
    """The object store as its own tools see it, by the variables that users of S3 set; with one bucket, ``bucket``."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("AWS_ENDPOINT_URL", object_store)
        variables.setenv("AWS_ACCESS_KEY_ID", "name")
        variables.setenv("AWS_SECRET_ACCESS_KEY", "word")
        variables.setenv("AWS_DEFAULT_REGION", "us-east-1")
        files = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
        files.mkdir("bucket")
        yield files


@pytest.fixture
def root(s3: Any, tmp_path: Path) -> str:
    """A place in the bucket that no other test uses."""
    return f"bucket/{tmp_path.name}/population"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "commits" / "c-1").mkdir(parents=True)
    (folder / "commits" / "c-1" / "learner.safetensors").write_bytes(os.urandom(100_000))
    (folder / "commits" / "c-1" / "manifest.json").write_text("{}")
    (folder / "empty").write_bytes(b"")
    (folder / "config.yaml").write_text("agent: ppo\n")
    return folder
