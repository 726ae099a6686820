"""What a user can get wrong on the command line: one sentence, the right exit code, and nothing written."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from elegantrl.report import plot as plot_module
from elegantrl.store.commits import Store
from elegantrl.store.loggers import LOGGERS
from elegantrl.store.runlog import read_metrics

Cli = Callable[..., Any]
LoadCommit = Callable[[Path], dict[str, Any]]
HashState = Callable[[Any], str]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot_module, "plot_run", lambda *_: None)
    monkeypatch.setitem(LOGGERS, "tensorboard", lambda run: Mock())


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock, whose content is the process that looked last."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


# ---- environments with one fault each; they are addressed as module:attribute


class Sound(gym.Env[Any, Any]):
    """Twenty steps per episode, and nothing wrong with it."""

    observation_space: Any = spaces.Box(-10, 10, (3,))
    action_space: Any = spaces.Discrete(2)
    fails_at: int | None = None
    """The step, counted over the life of the object, at which a faulty child shows its fault."""

    def __init__(self) -> None:
        self.time = self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.total += 1
        return np.full(3, self.time / 100, np.float32), 1.0, False, self.time >= 20, {}

    @property
    def fails_now(self) -> bool:
        return self.fails_at is not None and self.total >= self.fails_at


class DictObs(Sound):
    observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (3,))})


class TextObs(Sound):
    observation_space = spaces.Dict({"a": spaces.Text(3)})


class TupleAction(Sound):
    action_space = spaces.Tuple((spaces.Discrete(2),))


class MultiAction(Sound):
    action_space = spaces.MultiDiscrete([2, 3])


class ManyActions(Sound):
    action_space = spaces.MultiBinary(12)


class NanAtReset(Sound):
    def reset(self, **_: Any) -> Any:
        return np.array([0, np.nan, 0], np.float32), {}


class WrongShapeAtReset(Sound):
    def reset(self, **_: Any) -> Any:
        return np.zeros(4, np.float32), {}


class TextAtReset(Sound):
    def reset(self, **_: Any) -> Any:
        return np.array(["a", "b", "c"]), {}


class RaisesWhenMade(Sound):
    def __init__(self) -> None:
        raise RuntimeError("no licence\nfound")


class RaisesAtReset(Sound):
    def reset(self, **_: Any) -> Any:
        raise RuntimeError("no licence\nfound")


class NoStep:
    observation_space = Sound.observation_space
    action_space = Sound.action_space

    def reset(self) -> Any:
        return np.zeros(3)


class Raises(Sound):
    def step(self, action: Any) -> Any:
        if self.fails_now:
            raise RuntimeError("sensor\nlost")
        return super().step(action)


class NanObs(Sound):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return (obs * np.float32(np.nan if self.fails_now else 1), *rest)


class InfReward(Sound):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, np.inf if self.fails_now else reward, *rest)


class OtherShape(Sound):
    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return (np.zeros(4, np.float32) if self.fails_now else obs, *rest)


HERE = __name__

SMALL: tuple[Any, ...] = ("--num-envs", 2, "--agent.horizon", 4, "--agent.hidden", 8, "--agent.num-epochs", 1)
SMALL += ("--eval.interval", 10**6, "--eval.episodes", 1, "--checkpoint.interval", 20)


# ---- refused before anything is written

PPO = ("train", "ppo", "CartPole-v1")

REFUSED: list[tuple[tuple[Any, ...], str]] = [
    (("trian", "ppo", "CartPole-v1"), "there is no command 'trian'; did you mean 'train'?"),
    (("train", "ppo"), "the environment is missing"),
    (("train", "ppo", "--num-envs", 4), "the environment is missing"),
    (("train", "--resume"), "agent and environment are missing"),
    (("train", "pppo", "CartPole-v1"), "there is no agent 'pppo'; did you mean 'ppo' or"),
    (("train", "pppo"), "there is no agent 'pppo'; did you mean 'ppo' or"),
    (("train", "ppo", "CartPol-v1"), "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'"),
    (("train", "ppo", "qqqqq"), "unknown environment 'qqqqq'; `elegantrl envs` lists"),
    (("train", "ppo", "LunarLander-v2"), "environment 'LunarLander-v2' is retired; use 'LunarLander-v3'"),
    (("train", "ppo", "Pendulum-v0"), "environment 'Pendulum-v0' is retired; use 'Pendulum-v1'"),
    (("train", "ppo", "CartPole"), "environment 'CartPole' names no version; use 'CartPole-v1'"),
    (("train", "ppo", "no_such_module:Env"), "cannot import 'no_such_module'"),
    (("train", "ppo", f"{HERE}:Sond"), "has no class or function 'Sond'; did you mean 'Sound'"),
    (("train", "dqn", "Pendulum-v1"), "AgentDQN needs discrete or multi_discrete actions, but Pendulum-v1 has"),
    (("train", "sac", "CartPole-v1"), "AgentSAC needs continuous actions, but CartPole-v1 has discrete ones"),
    (("train", "ppo", f"{HERE}:DictObs"), "an array of shape (3,), expected a dict with ['a']"),
    (("train", "ppo", f"{HERE}:TextObs"), "observation_space['a'] is Text, expected Box"),
    (
        ("train", "ppo", f"{HERE}:TupleAction"),
        "its action_space is a tuple of 1, one for each agent, but",
    ),
    (("train", "discrete_sac", f"{HERE}:MultiAction"), "AgentDiscreteSAC needs discrete actions, but"),
    (("train", "dqn", f"{HERE}:ManyActions"), "have 4096 combinations, and action values are learned for at most 1024"),
    (("train", "ppo", f"{HERE}:NanAtReset"), "reset returned an observation with NaN or infinity"),
    (("train", "ppo", f"{HERE}:WrongShapeAtReset"), "an observation of shape (4,), expected (3,)"),
    (("train", "ppo", f"{HERE}:TextAtReset"), "expected numbers"),
    (("train", "ppo", f"{HERE}:NoStep"), "has no step"),
    ((*PPO, "--lerning-rate", 1), "there is no option '--lerning-rate'; did you mean '--agent.lr'?"),
    ((*PPO, "--agent.learnin-rate", 1), "there is no option '--agent.learnin-rate'; did you mean '--agent.lr'?"),
    ((*PPO, "--n-envs", 1), "there is no option '--n-envs'; did you mean '--num-envs'?"),
    ((*PPO, "--agent.h-length", 2), "agent.h_length=2 has no effect without agent.h_term"),
    ((*PPO, "--agent.lr-schedule", "linear", "--max-steps", 200000), "reaches 0 after agent.schedule_steps=100000"),
    ((*PPO, "--agent.clipp", 0.1), "there is no option '--agent.clipp'; did you mean '--agent.clip'"),
    ((*PPO, "--agent.clipp=0.1"), "there is no option '--agent.clipp'; did you mean '--agent.clip'"),
    ((*PPO, "--lr", 1), "there is no option '--lr'; did you mean '--agent.lr'?"),
    ((*PPO, "--interval", 1), "did you mean '--checkpoint.interval' or '--eval.interval'?"),
    ((*PPO, "--qqqq", 1), "there is no option '--qqqq'; see elegantrl train ppo CartPole-v1 --help"),
    ((*PPO, "more"), "'more' belongs to no option"),
    ((*PPO, "--config", "x.yaml"), "a config file names agent and environment itself"),
    ((*PPO, "--agent.gamma", 1.5), "agent.gamma=1.5 is out of range: it must be >= 0.0 and <= 1.0"),
    ((*PPO, "--agent.gamma", "nan"), "agent.gamma=nan is out of range"),
    ((*PPO, "--agent.hidden", 0), "agent.hidden=(0,) is out of range: it must be >= 1"),
    ((*PPO, "--num-envs", 0), "env.num_envs=0 is out of range: it must be >= 1"),
    ((*PPO, "--max-steps", 0), "train.max_steps=0 is out of range: it must be >= 1"),
    ((*PPO, "--max-seconds", "nan"), "train.max_seconds=nan is out of range: it must be > 0.0"),
    ((*PPO, "--seed", -1), "train.seed=-1 is out of range: it must be >= 0"),
    ((*PPO, "--eval.episodes", 0), "eval.episodes=0 is out of range"),
    ((*PPO, "--checkpoint.keep", 0), "checkpoint.keep=0 is out of range"),
    ((*PPO, "--num-envs", "abc"), "--num-envs 'abc' is not a whole number"),
    ((*PPO, "--num-envs", 1.5), "--num-envs '1.5' is not a whole number"),
    ((*PPO, "--num-envs"), "--num-envs needs a value"),
    ((*PPO, "--patience", "abc"), "--patience 'abc' is not a whole number"),
    ((*PPO, "--target-return", "abc"), "--target-return 'abc' is not a number"),
    ((*PPO, "--agent.lr", "abc"), "--agent.lr 'abc' is not a number"),
    ((*PPO, "--agent.hidden", "a", "b"), "--agent.hidden cannot be 'a', 'b'"),
    ((*PPO, "--agent.activation", "foo"), "--agent.activation 'foo' is not one of 'relu', 'tanh', 'silu', 'elu'"),
    ((*PPO, "--device", "foo"), "train.device='foo' is no device; use cpu, cuda or cuda:N"),
    ((*PPO, "--env-kwargs", "gravity"), "--env-kwargs 'gravity' is not name=value"),
    ((*PPO, "--env-kwargs", "=5"), "--env-kwargs '=5' is not name=value"),
    ((*PPO, "--env-kwargs", "gravity=5"), "environment 'CartPole-v1' cannot be made with {'gravity': 5}"),
    ((*PPO, "--env-kwargs", "x={a"), "--env-kwargs 'x={a' has a value that is not YAML"),
    ((*PPO, "--env-kwargs", "num_envs=3"), "is a setting of the run; use --num-envs 3"),
    (("envs", "more"), "'more' belongs to no option"),
    (("agents", "--more"), "there is no option '--more'"),
    (("eval",), "RUN is missing; see elegantrl eval --help"),
    (("eval", "x", "--episodes", 0), "--episodes 0 is out of range: it must be >= 1"),
    (("eval", "x", "--episodes", "two"), "--episodes 'two' is not a whole number"),
    (("plot",), "there is no run to plot"),
]


@pytest.mark.parametrize(("argv", "says"), REFUSED, ids=lambda x: " ".join(map(str, x)) if isinstance(x, tuple) else "")
def test_refused(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[Any, ...], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    if argv[0] == "train" and argv[-1] != "--num-envs":
        argv += ("--run-dir", "run")
    outcome = cli(*argv)
    assert outcome.code == 2
    assert says in outcome.sentence
    assert os.listdir() == []


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(("train", "ppo", f"{HERE}:RaisesWhenMade"), id="when made"),
        pytest.param(("train", "ppo", f"{HERE}:RaisesAtReset"), id="at reset"),
    ],
)
def test_an_environment_that_raises_before_the_first_step(cli: Cli, tmp_path: Path, argv: tuple[Any, ...]) -> None:
    outcome = cli(*argv, "--run-dir", tmp_path / "run")
    assert outcome.code == 2
    assert "no licence found" in outcome.sentence and HERE in outcome.sentence


@pytest.mark.parametrize("text", ["def broken(:", "raise RuntimeError('at import')"], ids=["syntax", "raises"])
def test_a_broken_module(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = cli("train", "ppo", "broken_module:Env", "--run-dir", tmp_path / "run")
    assert outcome.code == 2
    assert "broken_module" in outcome.sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none(cli: Cli, tmp_path: Path, name: str) -> None:
    outcome = cli(*PPO, "--device", name, "--run-dir", tmp_path / "run")
    assert outcome.code == 2
    assert f"train.device='{name}' needs a CUDA device and there is none; use --device cpu" in outcome.sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["meta", "mps"])
def test_a_device_that_cannot_learn(cli: Cli, tmp_path: Path, name: str) -> None:
    outcome = cli(*PPO, "--device", name, "--run-dir", tmp_path / "run", *SMALL, "--max-steps", 8)
    assert outcome.code == 2 and name in outcome.sentence


@pytest.mark.parametrize(
    "argv", [("--agent.lr", "inf"), ("--target-return", "nan"), ("--agent.reward-scale", "inf")], ids=" ".join
)
def test_numbers_that_are_not_finite(cli: Cli, tmp_path: Path, argv: tuple[str, ...]) -> None:
    outcome = cli(*PPO, *argv, "--run-dir", tmp_path / "run", *SMALL, "--max-steps", 8)
    assert outcome.code == 2
    assert not (tmp_path / "run").exists()


def test_a_buffer_larger_than_the_memory(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("train", "dqn", "CartPole-v1", "--agent.buffer-size", 10**13, "--run-dir", tmp_path / "run")
    assert outcome.code == 2 and "buffer_size" in outcome.sentence


# ---- config files

CONFIGS = {
    "no mapping": ("- a\n- b\n", "the config must be a mapping of names to values, not ['a', 'b']"),
    "empty": ("", "the config must be a mapping of names to values"),
    "not YAML": ("agent: {name: [ppo\n", "the config is not YAML"),
    "agent is text": ("agent: ppo\nenv: {id: CartPole-v1}\n", "agent must be a mapping of names to values, not 'ppo'"),
    "misspelt field": ("agent: {name: ppo, clipp: 0.1}\nenv: {id: CartPole-v1}\n", "no setting agent.clipp; did you m"),
    "misspelt section": ("agent: {name: ppo}\nenvv: {id: CartPole-v1}\n", "no setting envv; did you mean 'env'?"),
    "misspelt agent": (
        "agent: {name: pppo}\nenv: {id: CartPole-v1}\n",
        "there is no agent 'pppo'; did you mean 'ppo' or",
    ),
    "no environment": ("agent: {name: ppo}\n", "env.id is missing; give it a value"),
    "wrong type": ("agent: {name: ppo, lr: abc}\nenv: {id: CartPole-v1}\n", "agent.lr='abc' is not a number"),
    "out of range": ("agent: {name: ppo, gamma: 1.5}\nenv: {id: CartPole-v1}\n", "agent.gamma=1.5 is out of range"),
    "no choice": ("agent: {name: ppo, init: foo}\nenv: {id: CartPole-v1}\n", "agent.init='foo' is not one of default"),
    "code": ("agent: !!python/object/apply:os.mkdir [pwned]\n", "the config is not YAML"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_bad_config_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    text, says = CONFIGS[case]
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    outcome = cli("train", "--config", "config.yaml", "--run-dir", "run")
    assert outcome.code == 2
    assert says in outcome.sentence
    assert os.listdir() == ["config.yaml"]


def test_config_file_that_cannot_be_read(cli: Cli, tmp_path: Path) -> None:
    assert "No such file" in cli("train", "--config", tmp_path / "none.yaml").sentence
    assert "Is a directory" in cli("train", "--config", tmp_path).sentence
    (tmp_path / "binary.yaml").write_bytes(b"\x80\xff")
    assert "is not a text file" in cli("train", "--config", tmp_path / "binary.yaml").sentence
    assert "--config needs a value" in cli("train", "--config").sentence
    assert "there is no option '--max-steps'" in cli("train", "--config", "x", "--max-steps", 5).sentence


def test_config_file_that_gives_the_lanes_twice(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("agent: {name: ppo}\nenv: {id: CartPole-v1, kwargs: {num_envs: 3}}\n")
    assert cli("train", "--config", tmp_path / "c.yaml", "--run-dir", tmp_path / "run").code == 2


# ---- run folders


def train(cli: Cli, run_dir: Path, *more: Any, env: str = f"{HERE}:Sound", max_steps: int = 40) -> Any:
    return cli("train", "ppo", env, "--run-dir", run_dir, *SMALL, "--max-steps", max_steps, *more)


@pytest.fixture
def run_dir(cli: Cli, tmp_path: Path) -> Path:
    """A finished run of 40 steps with the commits of step 24 and step 40."""
    folder = tmp_path / "run"
    outcome = train(cli, folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert Store(folder).ids() == ["c-000000000024", "c-000000000040"]
    return folder


def test_a_folder_that_holds_a_run(cli: Cli, run_dir: Path) -> None:
    before = snapshot(run_dir)
    outcome = train(cli, run_dir)
    assert outcome.code == 2
    assert outcome.sentence == f"{run_dir} already holds a run; add --resume to continue it or choose another --run-dir"
    assert snapshot(run_dir) == before


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--agent.lr", 0.5), "agent.lr is 0.0003 there and 0.5 here"),
        (("--seed", 4), "train.seed is 0 there and 4 here"),
        (("--num-envs", 3), "env.num_envs is 2 there and 3 here"),
    ],
    ids=["lr", "seed", "num-envs"],
)
def test_a_folder_of_another_config(cli: Cli, run_dir: Path, more: tuple[Any, ...], says: str) -> None:
    before = snapshot(run_dir)
    outcome = train(cli, run_dir, *more, "--resume", max_steps=80)
    assert outcome.code == 2
    assert f"{run_dir} belongs to another config: {says}; use the same settings" in outcome.sentence
    assert snapshot(run_dir) == before


def test_a_folder_of_another_environment_or_agent(cli: Cli, run_dir: Path) -> None:
    before = snapshot(run_dir)
    assert f"env.id is '{HERE}:Sound' there" in train(cli, run_dir, "--resume", env=f"{HERE}:Raises").sentence
    outcome = cli("train", "a2c", f"{HERE}:Sound", "--run-dir", run_dir, "--resume")
    assert outcome.code == 2 and "agent.name is 'ppo' there and 'a2c' here" in outcome.sentence
    assert snapshot(run_dir) == before


def test_nothing_to_resume(cli: Cli, tmp_path: Path) -> None:
    outcome = train(cli, tmp_path / "none", "--resume")
    assert outcome.code == 4
    assert outcome.sentence == f"{tmp_path}/none holds no run to resume; check --run-dir or drop --resume"
    assert not (tmp_path / "none").exists()
    outcome = cli(*PPO, "--resume")
    assert outcome.code == 2 and "name it with --run-dir" in outcome.sentence


def test_a_run_folder_that_is_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    outcome = train(cli, tmp_path / "file")
    assert outcome.code == 2 and "is a file, not a folder" in outcome.sentence
    outcome = train(cli, tmp_path / "file" / "run")
    assert outcome.code == 5 and "Not a directory" in outcome.sentence
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_argument_is_not_the_current_folder(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli(*PPO, "--run-dir", "")
    assert outcome.code == 2 and "is empty; check quotes and variables" in outcome.sentence
    assert os.listdir() == []


def test_a_folder_that_another_process_writes(cli: Cli, run_dir: Path) -> None:
    before = snapshot(run_dir)
    with (run_dir / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write("4711@elsewhere")
        lock.flush()
        outcome = train(cli, run_dir, "--resume", max_steps=80)
    assert outcome.code == 2
    assert outcome.sentence.startswith(f"run folder {run_dir} is in use by pid 4711@elsewhere")
    assert snapshot(run_dir) == before


# ---- damaged commits


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def torch_bomb(marker: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Bomb(marker), buffer)
    return buffer.getvalue()


def truncate(commit: Path) -> None:
    with (commit / "learner.safetensors").open("r+b") as file:
        file.truncate(100)


def flip(commit: Path) -> None:
    data = bytearray((commit / "group0.safetensors").read_bytes())
    data[-1] ^= 1
    (commit / "group0.safetensors").write_bytes(data)


def tamper(commit: Path) -> None:
    path = commit / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 1, "extra": 2'))


def disguise(commit: Path) -> None:
    (commit / "learner.safetensors").write_bytes(pickle.dumps(Bomb(commit.parents[2] / "marker")))


def lose(commit: Path) -> None:
    (commit / "supervisor.json").unlink()


def from_the_future(commit: Path) -> None:
    path = commit / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))


DAMAGE: dict[Callable[[Path], None], str] = {
    truncate: "learner.safetensors has 100 bytes instead of",
    flip: "group0.safetensors sha256 mismatch",
    tamper: "manifest.json",
    disguise: "learner.safetensors has",
    lose: "supervisor.json",
    from_the_future: "format 2 is newer",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_damaged_commit(
    cli: Cli,
    run_dir: Path,
    tmp_path: Path,
    load_commit: LoadCommit,
    hash_state: HashState,
    damage: Callable[[Path], None],
) -> None:
    shutil.copytree(run_dir, tmp_path / "again")
    damage(run_dir / "commits/c-000000000040")
    outcome = train(cli, run_dir, "--resume", max_steps=56)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"skipped damaged commit c-000000000040: {DAMAGE[damage]}" in outcome.out
    assert "resumed c-000000000024 at step 24" in outcome.out
    assert not (tmp_path / "marker").exists()
    # The lost steps are done again and come out the same.
    assert train(cli, tmp_path / "again", "--resume", max_steps=56).code == 0
    for part in ("learner", "group0"):
        ours, theirs = load_commit(run_dir)[part], load_commit(tmp_path / "again")[part]
        assert hash_state(ours) == hash_state(theirs)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_all_commits_damaged(cli: Cli, run_dir: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    for commit in (run_dir / "commits").iterdir():
        damage(commit)
    before = snapshot(run_dir)
    outcome = train(cli, run_dir, "--resume", max_steps=80)
    assert outcome.code == 4
    assert outcome.sentence.startswith(f"no commit of {run_dir} is usable (c-000000000040: {DAMAGE[damage]}")
    assert snapshot(run_dir) == before
    assert not (tmp_path / "marker").exists()


def test_no_commit_at_all(cli: Cli, run_dir: Path) -> None:
    shutil.rmtree(run_dir / "commits")
    before = snapshot(run_dir)
    outcome = train(cli, run_dir, "--resume", max_steps=80)
    assert outcome.code == 4
    assert outcome.sentence == f"{run_dir} holds no commit to resume; start anew in another --run-dir"
    assert snapshot(run_dir) == before


def test_killed_before_its_first_commit(
    cli: Cli, run_dir: Path, load_commit: LoadCommit, hash_state: HashState
) -> None:
    sound = {part: hash_state(state) for part, state in load_commit(run_dir).items() if part != "supervisor"}
    for commit in (run_dir / "commits").iterdir():
        shutil.rmtree(commit)
    outcome = train(cli, run_dir, "--resume", max_steps=40)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"{run_dir} was interrupted before its first commit; the run begins anew" in outcome.out
    again = load_commit(run_dir)
    assert {part: hash_state(again[part]) for part in sound} == sound
    steps = [row["env_steps"] for row in read_metrics(run_dir) if row["kind"] == "eval"]
    assert steps == sorted(set(steps))


def forge(commit: Path, name: str, data: bytes) -> None:
    """Replace a file of a commit and make every hash right again."""
    (commit / name).write_bytes(data)
    manifest = json.loads((commit / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    del manifest["sha256"]
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (commit / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))


@pytest.mark.parametrize("make", [torch_bomb, lambda marker: pickle.dumps(Bomb(marker))], ids=["torch", "pickle"])
def test_a_pickle_with_the_right_hash_runs_nothing(
    cli: Cli, run_dir: Path, tmp_path: Path, make: Callable[[Path], bytes]
) -> None:
    for commit in (run_dir / "commits").iterdir():
        forge(commit, "learner.safetensors", make(tmp_path / "marker"))
    outcome = train(cli, run_dir, "--resume", max_steps=80)
    assert outcome.code == 4
    assert "c-000000000040: learner.safetensors is not a valid safetensors file" in outcome.sentence
    assert not (tmp_path / "marker").exists()


def test_a_pickle_with_the_right_hash_is_passed_over(cli: Cli, run_dir: Path, tmp_path: Path) -> None:
    forge(run_dir / "commits/c-000000000040", "learner.safetensors", torch_bomb(tmp_path / "marker"))
    outcome = train(cli, run_dir, "--resume", max_steps=56)
    assert not (tmp_path / "marker").exists()
    assert outcome.code == 0
    assert "resumed c-000000000024" in outcome.out


def test_commits_of_another_run(cli: Cli, run_dir: Path, tmp_path: Path) -> None:
    assert train(cli, tmp_path / "other", "--seed", 9).code == 0
    shutil.rmtree(run_dir / "commits")
    shutil.copytree(tmp_path / "other/commits", run_dir / "commits")
    outcome = train(cli, run_dir, "--resume", max_steps=80)
    assert outcome.code == 4


# ---- reading a run


@pytest.mark.parametrize("command", ["eval", "plot"])
def test_a_folder_that_is_no_run(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    for name in ("empty", "file", "none"):
        outcome = cli(command, tmp_path / name)
        assert outcome.code == 4
        assert str(tmp_path / name) in outcome.sentence


def test_eval_of_a_truncated_policy(cli: Cli, run_dir: Path) -> None:
    for size in (0, 100, (run_dir / "best.safetensors").stat().st_size - 1):
        with (run_dir / "best.safetensors").open("r+b") as file:
            file.truncate(size)
        outcome = cli("eval", run_dir)
        assert outcome.code == 4 and "best.safetensors" in outcome.sentence
        assert outcome.out == ""


@pytest.mark.parametrize("make", [torch_bomb, lambda marker: pickle.dumps(Bomb(marker))], ids=["torch", "pickle"])
def test_eval_of_a_bomb(cli: Cli, run_dir: Path, tmp_path: Path, make: Callable[[Path], bytes]) -> None:
    for name in ("best.safetensors", "actor.pth"):
        (run_dir / name).write_bytes(make(tmp_path / "marker"))
    outcome = cli("eval", run_dir)
    assert outcome.code == 4 and "best.safetensors is not a valid safetensors file" in outcome.sentence
    assert not (tmp_path / "marker").exists()


def test_eval_before_a_policy_was_written(cli: Cli, run_dir: Path) -> None:
    (run_dir / "best.safetensors").unlink()
    outcome = cli("eval", run_dir)
    assert outcome.code == 4
    assert outcome.sentence == f"{run_dir} holds no trained policy yet; let the run finish or resume it"


def test_eval_of_a_damaged_config(cli: Cli, run_dir: Path) -> None:
    (run_dir / "config.yaml").write_text("garbage")
    outcome = cli("eval", run_dir)
    assert outcome.code == 4 and str(run_dir) in outcome.sentence


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x.foo", "x.foo must end in one of .jpg, .pdf, .png, .svg"),
        (".", "is a folder; name a picture in it"),
    ],
)
def test_a_picture_that_cannot_be_written(cli: Cli, run_dir: Path, tmp_path: Path, name: str, says: str) -> None:
    outcome = cli("plot", run_dir, "--out", tmp_path / name)
    assert outcome.code == 2 and says in outcome.sentence


# ---- an environment that fails in the middle of a run

FAULTS = {
    Raises: f"worker 0 slot 0: RuntimeError: sensor lost at step 56 ({__file__}:",
    NanObs: f"{HERE}:NanObs gave a non-finite observation in lane 0 (step 0 of fragment 12)",
    InfReward: f"{HERE}:InfReward gave a non-finite reward in lane 0 (step 0 of fragment 12)",
    OtherShape: "step returned an observation of shape (4,), expected (3,) as in its observation_space at step 55",
}


@pytest.mark.parametrize("env", FAULTS, ids=lambda env: env.__name__)
def test_a_fault_in_the_middle_of_a_run(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load_commit: LoadCommit,
    hash_state: HashState,
    env: type[Sound],
) -> None:
    name = f"{HERE}:{env.__name__}"
    monkeypatch.setattr(env, "fails_at", 50)
    # Inline, since whoever picks a layout takes some steps first, and refuses what does not fit.
    outcome = train(cli, tmp_path / "run", "--executor", "inline", env=name, max_steps=400)
    assert outcome.code == 3
    assert FAULTS[env] in outcome.sentence and name in outcome.sentence
    commit = Store(tmp_path / "run").latest_valid()
    assert commit is not None and commit.step == 96  # 12 fragments of 2 lanes and 4 steps
    assert all(x.isfinite().all() for x in load_commit(tmp_path / "run")["supervisor"].values() if torch.is_tensor(x))
    # The fixed environment is continued as if nothing had happened.
    monkeypatch.setattr(env, "fails_at", None)
    resumed = train(cli, tmp_path / "run", "--resume", env=name, max_steps=160)
    assert (resumed.code, resumed.err) == (0, "")
    assert "resumed c-000000000096 at step 96" in resumed.out
    assert train(cli, tmp_path / "whole", env=name, max_steps=160).code == 0
    for part in ("learner", "group0"):
        assert hash_state(load_commit(tmp_path / "run")[part]) == hash_state(load_commit(tmp_path / "whole")[part])


@pytest.mark.parametrize(("env", "says"), [(Raises, "RuntimeError: sensor lost"), (InfReward, "non-finite reward")])
def test_a_fault_during_eval(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: type[Sound], says: str
) -> None:
    name = f"{HERE}:{env.__name__}"
    assert train(cli, tmp_path / "run", env=name).code == 0
    monkeypatch.setattr(env, "fails_at", 5)
    outcome = cli("eval", tmp_path / "run", "--json", "--allow-import")
    assert outcome.code == 3
    assert says in outcome.sentence and name in outcome.sentence
    assert outcome.out == ""
