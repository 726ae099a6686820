from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elegantrl import failpoints
from elegantrl.errors import CheckpointError, ConfigError, StorageError
from elegantrl.store import commits as store_module
from elegantrl.store.commits import Store
from elegantrl.store.files import write_atomic
from elegantrl.store.lock import FolderLock
from elegantrl.store.state import merge_state, split_state
from elegantrl.store.tensors import load_weights, save_actor_pth, save_weights

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64, torch.bfloat16]


def same(a: Any, b: Any) -> bool:
    """Equal in type, order of keys, dtype, shape and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return repr(a) == repr(b)  # nan is nan, and -0.0 is not 0.0
    return bool(a == b)


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def tensors() -> st.SearchStrategy[Tensor]:
    def build(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(shape, generator=generator) * 9).to(dtype)

    return st.builds(build, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 99))


keys = st.text(max_size=4) | st.sampled_from(["$tensor", "$float", "$", "$$", "a/b", "~1", "", "__metadata__"])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | tensors()
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
states = st.dictionaries(keys, values, max_size=4)

STATE = {
    "net": {"weight": torch.arange(6.0).reshape(2, 3), "empty": torch.zeros(0, 4), "scalar": torch.tensor(3)},
    "rng": {"state": 2**127 + 1, "has_gauss": False, "huge": -(7**6000)},
    "best": float("-inf"),
    "history": [{"step": 1, "value": float("nan")}, {}],
    "none": None,
}


@pytest.fixture(autouse=True)
def close_stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests may drop a locked store, as a process that dies does."""
    opened: list[FolderLock] = []
    acquire = FolderLock.acquire

    def acquire_and_remember(lock: FolderLock) -> None:
        opened.append(lock)
        acquire(lock)

    monkeypatch.setattr(FolderLock, "acquire", acquire_and_remember)
    yield
    for lock in opened:
        lock.release()


def make_store(folder: Path, steps: tuple[int, ...] = (1, 2), keep: int = 2) -> Store:
    store = Store(folder, keep=keep)
    for step in steps:
        store.commit(step, {"learner": {"x": torch.full((4,), float(step))}, "workers": {"step": step}}, {"step": step})
    return store


# ---- the state codec


@settings(max_examples=150, deadline=None)
@given(states)
def test_a_state_survives_being_split_and_merged(state: dict[str, Any]) -> None:
    parts, skeleton = split_state(state)
    assert same(merge_state(parts, json.loads(json.dumps(skeleton, allow_nan=False))), state)


@settings(max_examples=30, deadline=None)
@given(state=states)
def test_a_state_survives_the_disk(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> None:
    store = Store(tmp_path_factory.mktemp("run"))
    store.commit(1, {"part": state}, {})
    commit = store.latest_valid()
    store.close()
    assert commit is not None
    assert same(commit.load("part"), state)


def test_keys_with_a_slash_do_not_collide_with_nested_ones() -> None:
    state = {
        "a/b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        "a~1b": torch.tensor(3),
        "a~": {"1b": torch.tensor(4)},
    }
    tensors, skeleton = split_state(state)
    assert sorted(tensors) == ["/a/b", "/a~0/1b", "/a~01b", "/a~1b"]
    assert same(merge_state(tensors, skeleton), state)


def test_views_tied_weights_and_gradients_are_stored_by_value(tmp_path: Path) -> None:
    flat = torch.arange(6.0, requires_grad=True)
    state = {"flat": flat, "head": flat[:2], "tied": flat, "columns": flat.reshape(2, 3).T}
    store = Store(tmp_path)
    store.commit(1, {"part": state}, {})
    loaded = store.open("c-000000000001").load("part")
    assert same(loaded, {name: tensor.detach().clone() for name, tensor in state.items()})
    loaded["head"].zero_()
    assert loaded["flat"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": (1, 2)}}, "state/a/b is a tuple"),
        ({"a": {0: 1}}, "state/a has the key 0"),
        ({"a": [object()]}, "state/a/0 is a object"),
    ],
)
def test_what_is_not_a_state_is_refused_by_name(tmp_path: Path, state: dict[str, Any], message: str) -> None:
    store = Store(tmp_path)
    with pytest.raises(TypeError, match=message):
        store.commit(1, {"part": state}, {})
    assert os.listdir(tmp_path / "commits") == []


def test_deep_nesting_is_refused_in_both_directions() -> None:
    state: Any = 1
    for _ in range(70):
        state = {"a": state}
    with pytest.raises(TypeError, match="deeper than 64"):
        split_state(state)
    with pytest.raises(CheckpointError, match="deeper than 64"):
        merge_state({}, state)


def test_a_part_too_large_to_be_read_back_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "JSON_LIMIT", 100)
    store = Store(tmp_path)
    with pytest.raises(CheckpointError, match=r"workers\.json has \d+ bytes, the limit is 100"):
        store.commit(1, {"workers": {"list": list(range(100))}}, {})
    assert store.latest_valid() is None


@pytest.mark.parametrize(
    ("skeleton", "message"),
    [
        ([], "a state is a dict"),
        ({"a": {"$tensor": "/b"}}, r"\$tensor: '/b'"),
        ({"a": {"$tensor": "/a"}, "b": {"$tensor": "/a"}}, r"repeated entry \$tensor"),
        ({}, "1 tensors have no place in the state, the first is '/a'"),
        ({"a": {"$float": "1e9"}}, r"malformed or repeated entry \$float"),
        ({"a": {"$int": "__import__('os')"}}, r"malformed or repeated entry \$int"),
    ],
)
def test_a_skeleton_that_does_not_fit_its_tensors_is_refused(skeleton: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        merge_state({"/a": torch.zeros(1)}, skeleton)


# ---- commits


def test_commit_and_load(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.latest_valid() is None
    assert store.commit(5, {"learner": STATE}, {"config": "abc", "best": float("-inf")}) == "c-000000000005"
    commit = Store(tmp_path).latest_valid()
    assert commit is not None
    assert (commit.id, commit.step, commit.parts) == ("c-000000000005", 5, ["learner"])
    assert commit.manifest["info"] == {"config": "abc", "best": float("-inf")}
    assert commit.manifest["parent"] is None
    assert same(commit.load("learner"), STATE)
    store.commit(6, {"learner": STATE}, {})
    assert store.open("c-000000000006").manifest["parent"] == "c-000000000005"
    with pytest.raises(CheckpointError, match=r"has no part 'lerner'; did you mean 'learner'\?"):
        commit.load("lerner")


@pytest.mark.parametrize("keep", [1, 3])
def test_only_the_last_commits_are_kept(tmp_path: Path, keep: int) -> None:
    store = make_store(tmp_path, steps=(1, 2, 3, 4, 5), keep=keep)
    assert store.ids() == [f"c-{step:012d}" for step in range(6 - keep, 6)]
    assert sorted(os.listdir(tmp_path / "commits")) == store.ids()


def test_a_store_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep=0"):
        Store(tmp_path, keep=0)


def test_committing_a_step_twice_keeps_the_first(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    before = (tmp_path / "commits/c-000000000002/manifest.json").stat()
    assert store.commit(2, {"learner": {"x": torch.zeros(1)}}, {}) == "c-000000000002"
    assert (tmp_path / "commits/c-000000000002/manifest.json").stat().st_mtime_ns == before.st_mtime_ns


def test_a_damaged_commit_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    make_store(tmp_path).close()
    (tmp_path / "commits/c-000000000002/learner.json").write_text("{}")
    store = Store(tmp_path)
    commit = store.latest_valid()
    assert commit is not None and commit.step == 1
    store.commit(2, {"learner": {"fresh": True}}, {})
    assert store.open("c-000000000002").load("learner") == {"fresh": True}
    assert store.open("c-000000000002").manifest["parent"] == "c-000000000001"
    store.commit(3, {}, {})
    store.commit(4, {}, {})
    assert store.ids() == ["c-000000000003", "c-000000000004"], "a replaced commit is pruned like any other"


def test_a_damaged_newer_commit_does_not_push_out_a_good_one(tmp_path: Path) -> None:
    make_store(tmp_path, steps=(1, 9)).close()
    (tmp_path / "commits/c-000000000009/learner.json").unlink()
    store = Store(tmp_path)
    store.commit(2, {}, {})
    assert store.ids() == ["c-000000000001", "c-000000000002", "c-000000000009"]
    store.commit(3, {}, {})
    assert store.ids() == ["c-000000000002", "c-000000000003", "c-000000000009"]
    latest = store.latest_valid()
    assert latest is not None and latest.step == 3


def test_a_new_run_cannot_hide_behind_an_older_one(tmp_path: Path) -> None:
    make_store(tmp_path, steps=(100,)).close()
    with pytest.raises(ConfigError, match="already has c-000000000100, newer than c-000000000003"):
        make_store(tmp_path, steps=(3,))


@pytest.mark.parametrize("part", ["../x", "a/b", "", ".hidden", "manifest"])
def test_a_part_has_a_plain_name(tmp_path: Path, part: str) -> None:
    with pytest.raises(ValueError, match="cannot name a part"):
        Store(tmp_path).commit(1, {part: {}}, {})


def test_info_holds_no_tensors(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="info/a is a tensor"):
        Store(tmp_path).commit(1, {}, {"a": torch.zeros(1)})


# ---- damage

FILES = ["manifest.json", "learner.safetensors", "learner.json", "workers.safetensors", "workers.json"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def flip_last(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x01
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def into_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flip, flip_last, truncate, grow, empty, Path.unlink, into_folder])
def test_a_damaged_file_is_named_and_the_previous_commit_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Any
) -> None:
    store = make_store(tmp_path)
    damage(tmp_path / "commits/c-000000000002" / name)
    with caplog.at_level(logging.WARNING):
        commit = store.latest_valid()
    assert commit is not None and commit.step == 1
    assert commit.load("learner")["x"].tolist() == [1, 1, 1, 1]
    [reason] = store.skipped
    assert reason.startswith("c-000000000002: ") and name in reason
    assert reason in caplog.text


def test_a_changed_word_in_the_manifest_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(1, {}, {"config": "abc"})
    path = tmp_path / "commits/c-000000000001/manifest.json"
    path.write_text(path.read_text().replace("abc", "abd"))
    with pytest.raises(CheckpointError, match=r"manifest\.json sha256 mismatch"):
        store.open("c-000000000001")


def test_a_file_too_many_is_noticed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    (tmp_path / "commits/c-000000000002/extra.bin").touch()
    commit = store.latest_valid()
    assert commit is not None and commit.step == 1
    assert store.skipped == ["c-000000000002: extra.bin is not in manifest.json"]


def test_a_commit_under_another_name_is_noticed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    shutil.copytree(tmp_path / "commits/c-000000000001", tmp_path / "commits/c-000000000007")
    commit = store.latest_valid()
    assert commit is not None and commit.step == 2
    assert store.skipped == ["c-000000000007: manifest.json is of step 1"]


def test_only_commit_names_are_read(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for name in (".tmp-x", "c-9", "c-0000000000099", "checkpoint_temp", "c-00000000000\u0663"):
        shutil.copytree(tmp_path / "commits/c-000000000002", tmp_path / "commits" / name)
    assert store.ids() == ["c-000000000001", "c-000000000002"]
    with pytest.raises(CheckpointError, match="is not a commit of"):
        store.open("../commits/c-000000000001")


def test_no_valid_commit_is_an_error_that_names_every_reason(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    (tmp_path / "commits/c-000000000001/learner.json").unlink()
    truncate(tmp_path / "commits/c-000000000002/learner.safetensors")
    with pytest.raises(CheckpointError) as error:
        store.latest_valid()
    assert "c-000000000001: learner.json cannot be read: No such file" in str(error.value)
    assert "c-000000000002: learner.safetensors has" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError):  # and nobody starts from scratch over it
        Store(tmp_path).latest_valid()


def test_a_newer_format_is_refused_and_kept(tmp_path: Path) -> None:
    make_store(tmp_path, steps=(2,)).close()
    path = tmp_path / "commits/c-000000000002/manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(CheckpointError, match="format 2 is newer than 1"):
        Store(tmp_path).latest_valid()
    with pytest.raises(CheckpointError, match="format 2 is newer than 1"):
        make_store(tmp_path, steps=(3,))
    assert (tmp_path / "commits/c-000000000002/learner.json").exists()


def test_what_changes_between_check_and_load_is_noticed(tmp_path: Path) -> None:
    commit = make_store(tmp_path).latest_valid()
    assert commit is not None
    flip(commit.path / "learner.safetensors")
    (commit.path / "workers.json").unlink()
    with pytest.raises(CheckpointError, match=r"c-000000000002: learner\.safetensors sha256 mismatch"):
        commit.load("learner")
    with pytest.raises(CheckpointError, match=r"c-000000000002: workers\.json cannot be read"):
        commit.load("workers")


# ---- the lock


def test_one_folder_has_one_writer(tmp_path: Path) -> None:
    first, second = make_store(tmp_path), Store(tmp_path)
    with pytest.raises(ConfigError, match=f"is in use by pid {os.getpid()}@"):
        second.lock()
    commit = second.latest_valid()
    assert commit is not None and commit.step == 2, "reading needs no lock"
    first.close()
    second.lock()
    second.close()


def test_locking_removes_and_names_what_a_dead_writer_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_store(tmp_path).close()
    half, file = f"commits/.tmp-{'0a' * 16}", f".tmp-elegantrl-{'0a' * 16}"
    shutil.copytree(tmp_path / "commits/c-000000000002", tmp_path / half)
    (tmp_path / file).write_text("half a summary")
    Store(tmp_path).lock()
    assert not list(tmp_path.rglob(".tmp-*"))
    assert half in caplog.text and file in caplog.text


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"locking failed in .*file/run: Not a directory"):
        Store(tmp_path / "file" / "run").lock()


# ---- single files


def test_write_atomic_replaces_or_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    message = r"writing summary\.json failed in .*: No space left on device \(need 2\.0 MB, free \d"
    with pytest.raises(StorageError, match=message):
        write_atomic(path, bytes(2_000_000))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_weights_round_trip_with_metadata(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    save_weights(tmp_path / "best.safetensors", net.state_dict(), {"agent": "PPO"})
    weights, metadata = load_weights(tmp_path / "best.safetensors")
    assert metadata == {"agent": "PPO"}
    assert same(dict(sorted(weights.items())), dict(sorted(net.state_dict().items())))


def test_weights_without_a_hash_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="sha256 does not match"):
        load_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize("damage", [flip, flip_last, truncate, grow, empty, Path.unlink, into_folder])
def test_damaged_weights_are_refused(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "best.safetensors"
    save_weights(path, {"w": torch.ones(100)}, {})
    damage(path)
    with pytest.raises(CheckpointError, match=r"best\.safetensors"):
        load_weights(path)


def test_actor_pth_is_a_small_plain_state_dict(tmp_path: Path) -> None:
    # Guards against: R2b, checkpoints that only unpickling can read.
    flat = torch.nn.Parameter(torch.arange(100_000.0))
    save_actor_pth(tmp_path / "actor.pth", {"w": flat[:3], "b": flat[3:4]})
    loaded = torch.load(tmp_path / "actor.pth", weights_only=True)
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == {"w": [0, 1, 2], "b": [3]}
    assert not any(tensor.requires_grad for tensor in loaded.values())
    assert (tmp_path / "actor.pth").stat().st_size < 10_000, "a view must not drag its storage along"


# ---- fail points


def test_failpoints_are_parsed_strictly() -> None:
    assert failpoints.parse_failpoints("") == {}
    assert failpoints.parse_failpoints("a.b=kill9,c=sleep:0.5") == {"a.b": "kill9", "c": "sleep:0.5"}
    with pytest.raises(ConfigError, match="'a=explode' is not name="):
        failpoints.parse_failpoints("a=explode")


def test_failpoints_sleep_and_raise_only_where_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("time.sleep", naps.append)
    monkeypatch.setattr(failpoints, "ARMED", {"a": "sleep:2", "b": "raise"})
    failpoints.failpoint("a")
    failpoints.failpoint("other")
    assert naps == [2.0]
    with pytest.raises(RuntimeError, match="failpoint b"):
        failpoints.failpoint("b")
