"""What every storage promises: a local folder, and a real object store that runs beside the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elegantrl import failpoints
from elegantrl.errors import CheckpointError, StorageError
from elegantrl.store.storage import LocalStorage, Storage, open_storage


@pytest.fixture(params=["folder", "s3", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "storage")
    if request.param == "memory":
        return f"memory://{tmp_path.name}/storage"
    return f"s3://{request.getfixturevalue('root')}"


@pytest.fixture
def storage(url: str) -> Iterator[Storage]:
    opened = open_storage(url)
    yield opened
    opened.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# ---- single keys


def test_what_is_written_is_read(storage: Storage, url: str) -> None:
    storage.write("a", b"one")
    storage.write("a", b"two")
    storage.write("deep/er/key", b"")
    assert storage.read("a") == b"two"
    assert storage.read("deep/er/key") == b""
    assert open_storage(url).read("a") == b"two"
    assert open_storage(storage.url).read("a") == b"two"


def test_a_missing_key_is_named(storage: Storage) -> None:
    storage.write("other", b"x")
    with pytest.raises(CheckpointError, match="absent"):
        storage.read("absent")
    with pytest.raises(CheckpointError, match="absent"):
        storage.download("absent", Path("unused"))
    assert storage.read_all("absent") == b""
    assert storage.list("absent") == []
    storage.delete("absent")


def test_appends_come_back_in_order(storage: Storage, url: str) -> None:
    parts = [f"{number}\n".encode() for number in range(12)]
    for part in parts[:7]:
        storage.append("log", part)
    assert storage.read_all("log") == b"".join(parts[:7])
    storage.close()
    again = open_storage(url)  # the next controller
    for part in parts[7:]:
        again.append("log", part)
    again.append("runs/other", b"\n\n")
    assert again.read_all("log") == b"".join(parts)
    assert again.read_all("runs/other") == b"\n\n"
    again.close()


def test_a_key_stays_inside(storage: Storage) -> None:
    for key in ("", "/a", "a/", "../a", "a/../b", "a//b", ".a", "a b", "a\n"):
        with pytest.raises(ValueError, match="is no key"):
            storage.write(key, b"x")
        with pytest.raises(ValueError, match="is no key"):
            storage.delete(key)


# ---- folders


def test_a_folder_returns_as_it_was(storage: Storage, url: str, run_folder: Path, tmp_path: Path) -> None:
    before = contents(run_folder)
    (run_folder / ".lock").write_text("1@here")  # of the process that trains there
    storage.upload(run_folder, "runs/m1")
    open_storage(url).download("runs/m1", tmp_path / "copy")
    assert contents(tmp_path / "copy") == before


def test_an_upload_replaces_the_earlier_one(storage: Storage, run_folder: Path, tmp_path: Path) -> None:
    storage.upload(run_folder, "runs/m1")
    (run_folder / "empty").unlink()
    (run_folder / "config.yaml").write_text("agent: sac\n")
    storage.upload(run_folder, "runs/m1")
    storage.download("runs/m1", tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(run_folder)


def test_list_names_what_is_directly_below(storage: Storage, run_folder: Path) -> None:
    storage.upload(run_folder, "runs/m10")
    storage.upload(run_folder, "runs/m1")
    storage.write("runs/notes", b"x")
    storage.write("board", b"x")
    assert storage.list("runs") == ["runs/m1", "runs/m10", "runs/notes"]


def test_delete_takes_a_key_and_no_other(storage: Storage, run_folder: Path, tmp_path: Path) -> None:
    storage.upload(run_folder, "runs/m1")
    storage.upload(run_folder, "runs/m10")
    storage.write("runs/m", b"x")
    storage.append("log", b"x")
    storage.delete("runs/m1")
    assert storage.list("runs") == ["runs/m", "runs/m10"]
    with pytest.raises(CheckpointError, match="m1"):
        storage.download("runs/m1", tmp_path / "copy")
    storage.delete("runs/m")
    assert storage.list("runs") == ["runs/m10"]
    storage.delete("runs")
    assert storage.list("runs") == []
    assert storage.read_all("log") == b"x"


def test_a_full_disk_is_one_sentence(storage: Storage, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "ARMED", {"storage.append": "enospc", "storage.upload": "enospc"})
    with pytest.raises(StorageError, match="appending to log failed") as refused:
        storage.append("log", b"x")
    assert "\n" not in str(refused.value)
    with pytest.raises(OSError, match="No space left"):
        storage.upload(run_folder, "runs/m1")
    assert storage.list("runs") == []


def test_a_path_opens_a_folder(tmp_path: Path) -> None:
    assert isinstance(open_storage(tmp_path), LocalStorage)
    assert isinstance(open_storage("relative/path"), LocalStorage)


@pytest.mark.parametrize("url", ["s3", "memory"], indirect=True)
def test_a_second_controller_is_noticed(url: str) -> None:
    first, second = open_storage(url), open_storage(url)
    first.append("log", b"1")
    second.append("log", b"2")  # it has read the log to its end
    with pytest.raises(StorageError, match="another controller appends to log"):
        first.append("log", b"3")
    assert second.read_all("log") == b"12"
