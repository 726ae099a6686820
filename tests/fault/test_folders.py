"""Default run folders: launches at the same time do not meet, and a refused run leaves nothing behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from elegantrl.config.resolve import resolve_config
from elegantrl.errors import ConfigError, SpecError
from elegantrl.runtime.folder import claim_folder
from elegantrl.runtime.run import RunResult

Run = Callable[..., RunResult]


def test_parallel_launches_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # N7: parallel launches raced for the same default folder, and one died.
    monkeypatch.chdir(tmp_path)
    config, _ = resolve_config("ppo", "CartPole-v1")
    start, taken = threading.Barrier(16), []
    with ExitStack() as stack:

        def launch() -> None:
            start.wait()
            taken.append(stack.enter_context(claim_folder(config, None, False)))

        threads = [threading.Thread(target=launch) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        names = {f"ppo_CartPole-v1_seed0{suffix}" for suffix in ("", *(f"_{i}" for i in range(2, 17)))}
        assert {folder.name for folder in taken} == names == set(os.listdir("runs"))
    assert os.listdir() == []


def test_a_refused_run_leaves_no_folder_and_a_used_one_stays(
    run_quietly: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, SpecError)):
        run_quietly("sac", "CartPole-v1", max_steps=8)
    assert os.listdir() == []
    for number in (1, 2):
        result = run_quietly("ppo", "CartPole-v1", hidden=[4], horizon=8, max_steps=8, eval={"episodes": 1})
        assert result.run_dir.name == "ppo_CartPole-v1_seed0" + ("" if number == 1 else "_2")
    assert sorted(os.listdir("runs")) == ["ppo_CartPole-v1_seed0", "ppo_CartPole-v1_seed0_2"]


def test_an_empty_folder_of_the_user_stays(run_quietly: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises((ConfigError, SpecError)):
        run_quietly("sac", "CartPole-v1", max_steps=8, run_dir=tmp_path / "mine")
    assert (tmp_path / "mine").is_dir()


def test_a_name_that_no_file_system_takes_becomes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = resolve_config("ppo", "my/module:<lambda> " + "x" * 300)
    with claim_folder(config, None, False) as folder:
        assert folder.parent == Path("runs") and folder.name.startswith("ppo_my-module--lambda--x")
