"""An object store: lost answers, killed uploads, damaged folders, and addresses that lead nowhere."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elegantrl.errors import CheckpointError, ConfigError, StorageError
from elegantrl.store.storage import Storage, open_storage


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_an_append_whose_answer_was_lost_is_not_a_second_controller(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(f"s3://{root}")
    put = storage.files.pipe_file  # type: ignore[attr-defined]

    def twice(path: str, data: bytes, mode: str = "overwrite") -> None:
        put(path, data, mode=mode)
        put(path, data, mode=mode)  # as the store's package does after a lost answer

    monkeypatch.setattr(storage.files, "pipe_file", twice)  # type: ignore[attr-defined]
    storage.append("log", b"1")
    storage.append("log", b"2")
    assert storage.read_all("log") == b"12"


def test_a_lost_record_is_noticed(s3: Any, root: str) -> None:
    storage = open_storage(f"s3://{root}")
    for part in (b"1", b"2", b"3"):
        storage.append("log", part)
    for number in (1, 0):
        s3.rm_file(f"{root}/log/.records/{number:012d}")
        with pytest.raises(CheckpointError, match=f"record {number} of log is missing"):
            storage.read_all("log")


def test_an_upload_that_was_killed_leaves_the_earlier_folder(
    s3: Any, root: str, run_folder: Path, tmp_path: Path
) -> None:
    """The process dies after all files are there and before their list."""
    url = f"s3://{root}"
    code = (
        "import pathlib, sys; from elegantrl.store.storage import open_storage;"
        "open_storage(sys.argv[1]).upload(pathlib.Path(sys.argv[2]), 'runs/m1')"
    )

    def upload_killed() -> None:
        env = {**os.environ, "ELEGANTRL_FAILPOINTS": "storage.manifest=kill9"}
        assert subprocess.run([sys.executable, "-c", code, url, str(run_folder)], env=env).returncode == -signal.SIGKILL

    storage = open_storage(url)
    upload_killed()
    assert storage.list("runs") == []
    with pytest.raises(CheckpointError, match="holds no runs/m1"):
        storage.download("runs/m1", tmp_path / "none")
    storage.upload(run_folder, "runs/m1")
    before = contents(run_folder)
    (run_folder / "config.yaml").write_text("agent: sac\n")
    upload_killed()
    storage.download("runs/m1", tmp_path / "copy")
    assert contents(tmp_path / "copy") == before
    storage.delete("runs/m1")  # with what the dead processes left
    assert s3.find(root) == []


def test_an_earlier_upload_leaves_no_objects(s3: Any, root: str, run_folder: Path) -> None:
    storage = open_storage(f"s3://{root}")
    for _ in range(2):
        storage.upload(run_folder, "runs/m1")
    assert len(s3.find(f"{root}/runs/m1")) == len(contents(run_folder)) + 1


def damage(files: Any, root: str, how: str) -> None:
    (path,) = [p for p in files.find(root) if p.endswith("config.yaml")]
    manifest = json.loads(files.cat_file(f"{root}/.folder.json"))
    match how:
        case "size":
            files.pipe_file(path, b"agent: ppo\n ")
        case "hash":
            files.pipe_file(path, b"agent: sac\n")
        case "missing":
            files.rm_file(path)
        case "outside":
            manifest["files"]["../../stolen"] = manifest["files"]["config.yaml"]
        case "place":
            manifest["data"] = "../m2"
        case "no hash":
            manifest["files"]["config.yaml"] = {"size": 11}
    files.pipe_file(f"{root}/.folder.json", b"[]" if how == "list" else json.dumps(manifest).encode())


DAMAGE = {
    "size": "has 12 bytes instead of 11",
    "hash": "another sha256",
    "missing": "listed and missing",
    "outside": "names the file",
    "place": "malformed",
    "no hash": "malformed",
    "list": "malformed",
}


def test_a_damaged_folder_is_refused_as_a_whole(s3: Any, root: str, run_folder: Path, tmp_path: Path) -> None:
    storage = open_storage(f"s3://{root}")
    for how, sentence in DAMAGE.items():
        storage.upload(run_folder, "runs/m1")
        damage(s3, f"{root}/runs/m1", how)
        with pytest.raises(CheckpointError, match=sentence):
            storage.download("runs/m1", tmp_path / "into" / "copy")
        assert not (tmp_path / "into" / "copy").exists()
        assert not [*tmp_path.rglob("stolen"), *tmp_path.rglob(".tmp-*")]
        storage.delete("runs/m1")


# ---- what can be wrong with an address


def writes(storage: Storage, folder: Path) -> list[Callable[[], None]]:
    return [
        lambda: storage.write("a", b"x"),
        lambda: storage.append("log", b"x"),
        lambda: storage.upload(folder, "runs/m1"),
    ]


def test_no_bucket(s3: Any) -> None:
    with pytest.raises(StorageError, match="there is no bucket for s3://nowhere/p; create it"):
        open_storage("s3://nowhere/p")


def test_a_bucket_that_disappears(s3: Any, run_folder: Path) -> None:
    s3.mkdir("short-lived")
    storage = open_storage("s3://short-lived/p")
    s3.rmdir("short-lived")
    for write in writes(storage, run_folder):
        with pytest.raises(StorageError, match="there is no bucket"):
            write()


def test_no_endpoint(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(StorageError, match=r"opening failed in s3://.*connect.*check the address") as refused:
            open_storage("s3://bucket/p")
    assert "\n" not in str(refused.value)


def test_refused_writes(s3: Any, run_folder: Path) -> None:
    """A rule of the bucket denies every write."""
    s3.mkdir("read-only")
    rule = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::read-only/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rule]})
    s3.call_s3("put_bucket_policy", Bucket="read-only", Policy=policy)
    for write in writes(open_storage("s3://read-only/p"), run_folder):
        with pytest.raises(StorageError, match="check the credentials") as refused:
            write()
        assert "\n" not in str(refused.value)


def test_no_credentials(s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="check the credentials"):
        open_storage("s3://bucket/p")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("s3://name:word@bucket/p", "holds a password"),
        ("nosuch://bucket/p", "cannot be opened"),
    ],
)
def test_bad_addresses(address: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        open_storage(address)
    assert "word" not in str(refused.value).replace("password", "")


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"s3fs.*pip install 'elegantrl\[cloud\]'"):
        open_storage("s3://bucket/p")
