"""The storage of populations in a local folder: what the contract of all storages (tests/contract) does not say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elegantrl import failpoints
from elegantrl.errors import CheckpointError, ConfigError, StorageError
from elegantrl.store.storage import LocalStorage, open_storage


def make_folder(path: Path, text: str) -> Path:
    (path / "deep").mkdir(parents=True)
    (path / "a.txt").write_text(text)
    (path / "deep" / "b.bin").write_bytes(b"\x00\x01")
    return path


def test_a_folder_replaces_an_earlier_one(tmp_path: Path) -> None:
    # V6: copying onto an existing folder works.
    storage = LocalStorage(tmp_path / "store")
    storage.upload(make_folder(tmp_path / "one", "1"), "runs/m000-0000")
    storage.upload(make_folder(tmp_path / "two", "2"), "runs/m000-0000")
    storage.download("runs/m000-0000", tmp_path / "back")
    assert (tmp_path / "back" / "a.txt").read_text() == "2" and (tmp_path / "back" / "deep" / "b.bin").exists()
    assert storage.list("runs") == ["runs/m000-0000"]
    storage.delete("runs/m000-0000")
    assert os.listdir(tmp_path / "store" / "runs") == []
    with pytest.raises(CheckpointError, match="holds no runs/m000-0000"):
        storage.download("runs/m000-0000", tmp_path / "gone")


def test_a_folder_that_was_not_stored_completely_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path / "store")
    monkeypatch.setitem(failpoints.ARMED, "storage.upload", "enospc")
    with pytest.raises(StorageError, match=r"storing runs/m000-0000 failed in .*No space left.*need 0.0 MB"):
        storage.upload(make_folder(tmp_path / "one", "1"), "runs/m000-0000")
    assert storage.list("runs") == []
    leftover = tmp_path / "store" / "runs" / f".tmp-{'0' * 32}"
    leftover.mkdir()
    storage.lock()
    assert not leftover.exists()


def test_one_controller_at_a_time(tmp_path: Path) -> None:
    first, second = LocalStorage(tmp_path), LocalStorage(tmp_path)
    first.lock()
    with pytest.raises(ConfigError, match="is in use by pid"):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_an_address_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elegantrl.store.storage.OBJECT_STORAGE", "elegantrl.store.no_such_module:Missing")
    with pytest.raises(ConfigError, match=r"s3://bucket/x needs a package .* pip install 'elegantrl\[cloud\]'"):
        open_storage("s3://bucket/x")
