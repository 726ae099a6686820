"""Run folders made to harm the user who reads them: no code of theirs runs, nothing hangs, one sentence says why."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file

import elegantrl
from elegantrl.config.yaml_text import MAX_CHARACTERS, parse_yaml
from elegantrl.errors import CheckpointError, ConfigError, ElegantRLError, StorageError
from elegantrl.report.runs import read_run
from elegantrl.runtime.run import RunResult
from elegantrl.store.best import BEST_FILE
from elegantrl.store.commits import Store
from elegantrl.store.tensors import load_weights, save_weights
from elegantrl.store.trained import TrainedPolicy
from elegantrl.store.untrusted import load_config

Run = Callable[..., RunResult]
Cli = Callable[..., Any]
SHORT: dict[str, Any] = {"hidden": [4], "horizon": 8, "max_steps": 8, "eval": {"episodes": 1}}


@pytest.fixture
def folder(run_quietly: Run, tmp_path: Path) -> Path:
    run_quietly("ppo", "CartPole-v1", run_dir=tmp_path / "run", **SHORT)
    return tmp_path / "run"


def change_config(folder: Path, section: str, **changes: Any) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config[section].update(changes)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


# ---- R1: nothing that a folder names by import path is imported or called


class Canary:
    """An environment that says when it was made."""

    made: list[dict[str, Any]]

    def __new__(cls, **kwargs: Any) -> Any:
        cls.made.append(kwargs)
        return elegantrl.envs.make.gym.make("CartPole-v1")


@pytest.fixture(autouse=True)
def canary() -> Iterator[None]:
    Canary.made = []
    yield


IDS = ["os:system", "this:Zen-v0", "this:CartPole-v1", f"{__name__}:Canary", "a.b:c:d", "mpe2:os.system", "mpe2:a_v3.b"]


@pytest.mark.parametrize("env_id", IDS)
def test_eval_runs_no_environment_that_only_the_folder_names(
    folder: Path, cli: Cli, capsys: pytest.CaptureFixture[str], env_id: str
) -> None:
    # R1: `elegantrl eval FOLDER` imported and called what env.id and env.kwargs named.
    import sys

    sys.modules.pop("this", None)
    change_config(folder, "env", id=env_id, kwargs={"command": "touch marker"} if env_id == "os:system" else {})
    outcome = cli("eval", folder)
    assert outcome.code == 2 and f"is named by the import path {env_id!r}" in outcome.sentence
    assert f"--env {env_id}" in outcome.sentence and "--allow-import" in outcome.sentence
    with pytest.raises(ConfigError, match="may not choose what code runs here"):
        TrainedPolicy.load(folder).evaluate(1)
    assert not Canary.made and "this" not in sys.modules and not (folder / "marker").exists()


def test_eval_runs_no_evaluation_environment_that_only_the_folder_names(folder: Path, cli: Cli) -> None:
    # R1: the environment of evaluation and its arguments are the folder's choice too.
    change_config(folder, "eval", env_id=f"{__name__}:Canary")
    assert "may not choose what code runs here" in cli("eval", folder).sentence
    change_config(folder, "eval", env_id=None, env_kwargs={"xml_file": "/etc/passwd"})
    assert "which may read a file" in cli("eval", folder).sentence
    assert not Canary.made


def test_an_environment_by_import_path_runs_if_the_user_names_or_allows_it(folder: Path, cli: Cli) -> None:
    mine = f"{__name__}:Canary"
    change_config(folder, "env", id=mine, kwargs={"size": 3})
    assert cli("eval", folder, "--env", mine, "--episodes", 2).code == 0
    assert Canary.made == [{"size": 3}] * 2  # it is the run's environment, so its arguments go with it
    assert cli("eval", folder, "--allow-import", "--episodes", 1).code == 0
    assert len(Canary.made) == 3
    assert TrainedPolicy.load(folder, allow_import=True).evaluate(1).mean > 0
    assert len(Canary.made) == 4
    assert TrainedPolicy.load(folder).evaluate(1, env=Canary).mean > 0
    assert Canary.made[-1] == {}  # another environment has no business with the folder's arguments
    assert cli("eval", folder, "--env", "CartPole-v1", "--episodes", 1).code == 0


def test_tasks_of_libraries_count_as_registered(run_quietly: Run, tmp_path: Path, cli: Cli) -> None:
    run_quietly("mappo", "mpe2:simple_spread_v3", run_dir=tmp_path / "run", **SHORT)
    assert cli("eval", tmp_path / "run", "--episodes", 2).code == 0


def test_a_run_evaluates_its_own_environment_without_questions(run_quietly: Run, tmp_path: Path) -> None:
    run = run_quietly("ppo", f"{__name__}:Canary", run_dir=tmp_path / "run", **SHORT)
    assert run.load_policy().evaluate(1).mean > 0


@pytest.mark.parametrize(
    "kwargs",
    [
        {"disable_env_checker": False},
        {"entry_point": "os.system"},
        {"vector_kwargs": {}},
        {"vectorization_mode": "vector_entry_point"},
        {"xml_file": "/etc/passwd"},
        {"xml_file": "../secret.xml"},
        {"xml_file": "~user"},
        {"wrapper": "os:system"},
        {"options": {"deep": ["os:system"]}},
        {"options": {"os:system": 1}},
        {"a b": 1},
        {"_private": 1},
    ],
    ids=str,
)
def test_arguments_of_a_registered_environment_are_plain(folder: Path, cli: Cli, kwargs: dict[str, Any]) -> None:
    # R1: arguments are part of what a folder may not choose freely.
    change_config(folder, "env", kwargs=kwargs)
    outcome = cli("eval", folder)
    assert outcome.code == 2 and "which may read a file or choose code" in outcome.sentence


def test_plain_arguments_of_registered_environments_work_as_before(run_quietly: Run, tmp_path: Path, cli: Cli) -> None:
    kwargs = {"map_name": "4x4", "is_slippery": False, "desc": ["SFFF", "FHFH", "FFFH", "HFFG"]}
    run_quietly("ppo", "FrozenLake-v1", run_dir=tmp_path / "run", **SHORT)
    change_config(tmp_path / "run", "env", kwargs=kwargs)
    assert cli("eval", tmp_path / "run", "--episodes", 2).code == 0


def rewrite_best(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **about: Any) -> None:
    """Change best.safetensors as somebody who knows how its hash is made."""
    found, metadata = load_weights(folder / BEST_FILE)
    changes = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    save_weights(folder / BEST_FILE, tensors or found, {**metadata, **changes})


def policy_of(folder: Path) -> dict[str, Any]:
    return json.loads(load_weights(folder / BEST_FILE)[1]["policy"])


def test_a_policy_by_import_path_is_refused(folder: Path, cli: Cli) -> None:
    # R1: the same rule for policies and their parts.
    spec = policy_of(folder)
    for changed in (
        {**spec, "kind": "os:system"},
        {**spec, "kwargs": {**spec["kwargs"], "encoder": "os:system"}},
        {"kind": "ensemble", "kwargs": {"members": [{"kind": "os:system", "kwargs": {}}], "weights": [1.0]}},
    ):
        rewrite_best(folder, policy=changed)
        outcome = cli("eval", folder)
        assert outcome.code == 2 and "the import path 'os:system'" in outcome.sentence


def test_an_agent_by_import_path_is_not_imported(folder: Path, cli: Cli) -> None:
    # R1: the same rule for agents; to play a policy its agent is not needed.
    change_config(folder, "agent", name=f"{__name__}:Canary")
    assert cli("eval", folder, "--episodes", 1).code == 0
    outcome = cli("train", "ppo", "CartPole-v1", "--run-dir", folder, "--resume")
    assert outcome.code == 2 and not Canary.made


# ---- R10: files that hang, exhaust or mislead a reader

BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "holds more than 20000 values"),
        ("a: &a [*a]", "stands for nothing complete"),
        ("[" * 5000 + "]" * 5000, "nested deeper than 20 levels"),
        ("{a: " * 5000 + "1" + "}" * 5000, "nested deeper than 20 levels"),
        ("\n".join(" " * i + "- " for i in range(300)), "nested deeper than 20 levels"),
        ("x" * (MAX_CHARACTERS + 1), "characters, the limit is"),
        ("a: " + "9" * 5000, "is not YAML"),
        ("a: 2020-13-45", "is not YAML"),
        ("!!python/object/apply:os.system [ls]", "is not YAML"),
        ("? [a]\n: 1", "is not YAML"),
        ("a: *b", "stands for nothing complete"),
        ("a: \0", "is not YAML"),
    ],
    ids=["bomb", "loop", "lists", "maps", "blocks", "long", "digits", "date", "tag", "key", "unknown", "control"],
)
def test_hostile_yaml_is_refused_in_a_sentence(folder: Path, cli: Cli, text: str, message: str) -> None:
    # R10: a YAML bomb hung `eval`.
    (folder / "config.yaml").write_text(text)
    for command in (("eval", folder), ("plot", folder, "--out", folder / "x.png")):
        outcome = cli(*command)
        assert message in outcome.sentence and len(outcome.sentence) < 1000
        assert outcome.code in (2, 4)


ABSURD = [float("inf"), float("nan"), -(10**30), 10**4000, "\0", [], {"a": 1}, [[1]], {1: 2}]


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: f"{type(value).__name__}-{str(value)[:8]}")
def test_an_absurd_setting_is_no_traceback(folder: Path, value: Any) -> None:
    # R16: absurd sizes gave tracebacks.
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for section in ("agent", "env", "eval"):
        for name, before in config[section].items():
            config[section][name] = value
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
            config[section][name] = before
            with contextlib.suppress(ElegantRLError):
                TrainedPolicy.load(folder).choose_env()
            with contextlib.suppress(ElegantRLError):
                load_config(folder)
            with contextlib.suppress(ElegantRLError):
                read_run(folder)


def test_aliases_within_the_limits_are_yaml_as_ever() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}


@pytest.mark.parametrize("name", ["config.yaml", BEST_FILE])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "link to a device", "dangling link"])
def test_what_is_no_regular_file_is_not_read(folder: Path, cli: Cli, name: str, kind: str) -> None:
    # R10: a FIFO in the place of a file hung `eval`.
    path = folder / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    else:
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("devices need privileges")
    outcome = cli("eval", folder)
    assert outcome.code == 4 and ("not a regular file" in outcome.sentence or "holds no" in outcome.sentence
                                  or "cannot be read" in outcome.sentence)  # fmt: skip


def test_a_link_to_a_regular_file_is_followed(folder: Path, tmp_path: Path, cli: Cli) -> None:
    """As caches of downloaded folders are made of them."""
    (folder / BEST_FILE).rename(tmp_path / "blob")
    (folder / BEST_FILE).symlink_to(tmp_path / "blob")
    assert cli("eval", folder, "--episodes", 1).code == 0


def test_a_changed_header_is_refused(folder: Path, cli: Cli) -> None:
    # R10: the hash covered the tensors alone, and a policy whose tanh was changed to relu was played.
    rewrite_best(folder, policy=policy_of(folder) | {"note": "tanh"})
    data = (folder / BEST_FILE).read_bytes()
    assert data.count(b"tanh") == 1
    (folder / BEST_FILE).write_bytes(data.replace(b"tanh", b"relu"))
    with pytest.raises(CheckpointError, match="sha256 does not match"):
        load_weights(folder / BEST_FILE)
    assert cli("eval", folder).code == 4


def test_a_policy_file_without_its_hash_is_refused(folder: Path, cli: Cli) -> None:
    with safe_open(folder / BEST_FILE, "pt") as file:
        about = {key: value for key, value in file.metadata().items() if key != "sha256"}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, folder / BEST_FILE, about)
    assert "sha256 does not match" in cli("eval", folder).sentence


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(folder: Path, cli: Cli, value: float) -> None:
    # R10: NaN weights were played without a word.
    tensors, _ = load_weights(folder / BEST_FILE)
    name = next(iter(tensors))
    tensors[name].view(-1)[0] = value
    rewrite_best(folder, tensors)
    outcome = cli("eval", folder)
    assert outcome.code == 4 and f"NaN or infinity in {name!r}" in outcome.sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"net": {"hidden": [200_000, 200_000]}},
        {"net": {"hidden": [2**40]}},
        {"net": {"hidden": [2**62, 2**62]}},
        {"net": {"hidden": [-1]}},
        {"net": {"hidden": "tanh"}},
        {"net": {"hidden": [[4]]}},
        {"obs": {"leaf": [[10**9], "float32"]}},
        {"obs": {"leaf": [[4], "load"]}},
        {"obs": {"leaf": [["4"], "float32"]}},
        {"obs": {"leaf": None}},
        {"action": {"dim": 10**15, "choices": []}},
        {"net": {"activation": "none such"}},
        {"net": {"network": "none such"}},
        {"kwargs": {"more": 1}},
    ],
    ids=str,
)
def test_sizes_are_compared_before_memory_is_taken(folder: Path, cli: Cli, changes: dict[str, Any]) -> None:
    # R10: a description of a few bytes could ask for any amount of memory.
    spec = policy_of(folder)
    rewrite_best(folder, policy=spec | {name: spec[name] | change for name, change in changes.items()})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = cli("eval", folder)
    assert outcome.code == 4 and "does not hold a policy of this version" in outcome.sentence
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # kilobytes


def test_a_huge_sparse_file_is_not_read(folder: Path, cli: Cli) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("config.yaml", BEST_FILE):
        with (folder / name).open("r+b") as file:
            file.truncate(40 << 30)  # sparse: costs no disk
    (folder / "config.yaml").rename(folder / "c")
    assert cli("eval", folder).code == 4
    (folder / "c").rename(folder / "config.yaml")
    assert "the limit is" in cli("eval", folder).sentence
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("policy", ["", "[]", "7", "null", '{"kind": 7}', "[" * 10_000, '{"kind": "q"}'])
def test_a_malformed_description_is_one_sentence(folder: Path, cli: Cli, policy: str) -> None:
    rewrite_best(folder, policy=policy)
    outcome = cli("eval", folder)
    assert outcome.code == 4 and outcome.sentence


# ---- R8: the folder's own files are ours, all others are the user's


def test_a_users_temporary_files_stay(tmp_path: Path) -> None:
    # R8: every .tmp-* in the run folder was deleted.
    (tmp_path / "commits").mkdir()
    mine = [".tmp-notes", ".tmp-" + "0" * 32, ".tmp-elegantrl-x", "commits/.tmp-mine", "commits/.tmp-" + "A" * 32]
    for name in mine:
        (tmp_path / name).write_text("precious")
    (tmp_path / "commits" / f".tmp-{'1' * 32}").symlink_to(tmp_path / ".tmp-notes")
    store = Store(tmp_path)
    store.lock()
    store.close()
    assert all((tmp_path / name).read_text() == "precious" for name in mine)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    # R8: .lock was opened through links and truncated.
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match=r"\.lock is a link"):
        Store(tmp_path / "run").lock()
    assert (tmp_path / "precious").read_text() == "precious"
    (tmp_path / "run/.lock").unlink()
    os.mkfifo(tmp_path / "run/.lock")
    with pytest.raises(ConfigError, match=r"\.lock is not a regular file"):
        Store(tmp_path / "run").lock()


def test_a_lock_in_use_is_not_truncated(tmp_path: Path) -> None:
    first = Store(tmp_path)
    first.lock()
    before = (tmp_path / ".lock").read_text()
    with pytest.raises(ConfigError, match="in use by pid"):
        Store(tmp_path).lock()
    assert (tmp_path / ".lock").read_text() == before == f"{os.getpid()}@{os.uname().nodename}"
    first.close()


def commit(store: Store, step: int) -> str:
    return store.commit(step, {"part": {"x": torch.zeros(1)}}, {})


def test_without_its_lock_file_a_run_does_not_write_beside_another(tmp_path: Path) -> None:
    # R8: once .lock was removed, two runs wrote to one folder.
    first, second = Store(tmp_path), Store(tmp_path)
    commit(first, 1)
    (tmp_path / ".lock").unlink()
    commit(second, 2)
    with pytest.raises(ConfigError, match="another run may write"):
        commit(first, 3)
    second.close()
    first.close()
    assert Store(tmp_path).ids() == ["c-000000000001", "c-000000000002"]


def test_a_lock_file_that_was_only_removed_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    commit(store, 1)
    (tmp_path / ".lock").unlink()
    commit(store, 2)
    assert "was removed while this run held it; it was made again" in caplog.text
    with pytest.raises(ConfigError, match="in use by pid"):
        Store(tmp_path).lock()
    (tmp_path / ".lock").unlink()
    other = Store(tmp_path)
    commit(other, 3)
    other.close()
    (tmp_path / ".lock").unlink()
    with pytest.raises(ConfigError, match="another run wrote c-000000000003"):
        commit(store, 4)
    store.close()


def test_a_run_folder_that_was_removed_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    commit(store, 1)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="was removed while this run wrote to it"):
        commit(store, 2)
    store.close()


def test_resuming_reads_no_hostile_commit(folder: Path) -> None:
    with pytest.raises(CheckpointError):
        Store(folder).open("../../etc")


@pytest.mark.parametrize(("section", "name"), [("execute", "executor"), ("agent", "network")])
def test_a_config_file_chooses_neither_executor_nor_networks(folder: Path, cli: Cli, section: str, name: str) -> None:
    import sys

    sys.modules.pop("this", None)
    change_config(folder, section, **{name: "this:Zen"})
    outcome = cli("train", "--config", folder / "config.yaml", "--run-dir", folder.parent / "other")
    assert outcome.code == 2 and "this:Zen" in outcome.sentence and "--allow-import" in outcome.sentence
    assert "this" not in sys.modules


def test_a_resumed_folder_does_not_choose_the_executor(folder: Path, cli: Cli) -> None:
    import sys

    sys.modules.pop("this", None)
    change_config(folder, "execute", executor="this:Zen")
    outcome = cli("train", "ppo", "CartPole-v1", "--run-dir", folder, "--resume")
    assert outcome.code == 2 and "--executor this:Zen" in outcome.sentence
    assert "this" not in sys.modules
