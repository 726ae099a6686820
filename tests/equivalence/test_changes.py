"""Ten changes as a new contributor would make them: docs/architecture.md names the one place for each, and each counts.

Changes of the library are made on disk in a copy of the package and tried in an interpreter of its own; what a third
party adds lies in a module of its own beside the script.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import elegantrl

PACKAGE = Path(elegantrl.__file__).parent
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"

HEAD = """
import hashlib, sys
from pathlib import Path
import elegantrl

NEVER = {"eval": {"interval": 10**9, "episodes": 1, "max_episode_steps": 20}, "verbose": False, "seed": 3}

def learned(agent, env, folder="run", **settings):
    result = elegantrl.train(agent, env, run_dir=folder, **{**NEVER, "executor": "inline", **settings})
    weights = result.load_policy().policy.state_dict()
    return hashlib.sha256(b"".join(x.numpy().tobytes() for x in weights.values())).hexdigest()

if __name__ == "__main__":
    assert Path(elegantrl.__file__).is_relative_to(Path.cwd()), elegantrl.__file__
"""
PPO = "print(learned('ppo', 'TensorCartPole', max_steps=512, num_envs=8, horizon=32, num_epochs=2))"
SAC = (
    "print(learned('sac', 'TensorPendulum', max_steps=140, learning_starts=100, hidden=[16, 16], batch_size=32,"
    " num_envs=1))"
)


def output(folder: Path, body: str) -> str:
    """What a script prints with the package that lies in ``folder``."""
    (folder / "script.py").write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
    shutil.rmtree(folder / "run", ignore_errors=True)
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package."""
    folder = tmp_path_factory.mktemp("changes")
    shutil.copytree(PACKAGE, folder / "elegantrl")
    return folder


INTEGER_ACTIONS = """
import gymnasium as gym, numpy as np
class Dial(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Box(0, 9, (1,), dtype=np.int64)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), float(action[0]), False, True, {}
try:
    print(len(learned('ppo', Dial, max_steps=16, num_envs=2, horizon=8)))
except elegantrl.ElegantRLError as error:
    print(error)
"""
HELP = """
from elegantrl.cli.main import main
try:
    main(["train", "ppo", "CartPole-v1", "--help"])
except SystemExit:
    pass
print(hasattr(elegantrl.RunConfig.__dataclass_fields__["train"].default, "log_colour"))
"""
ERROR = """
try:
    elegantrl.train("no_such_agent", "CartPole-v1")
except elegantrl.ElegantRLError as error:
    print(error)
"""
PLOT = """
from elegantrl.report.plot import plot_run
learned('ppo', 'TensorCartPole', max_steps=512, num_envs=8, horizon=32, num_epochs=1)
print(hashlib.sha256(plot_run("run", "curve.png").read_bytes()).hexdigest())
"""

EDITS = {
    "Adam's epsilon": ("agents/base.py", "float = setting(1e-5, gt=0.0)", "float = setting(0.1, gt=0.0)", PPO),
    "PPO's clip": ("agents/ppo.py", "b.advantage, self.hypers.clip,", "b.advantage, 0.01 * self.hypers.clip,", PPO),
    "SAC's actor loss": ("agents/sac.py", "self.actor_q(q_EB)).mean()", "2 * self.actor_q(q_EB)).mean()", SAC),
    "a Gymnasium space": ("envs/spaces.py", 'space.dtype.kind == "f"', 'space.dtype.kind in "fi"', INTEGER_ACTIONS),
    "a flag": (
        "config/sections.py",
        "    num_threads: int = setting(1, ge=1)",
        '    log_colour: str = "grey"\n    """Colour of log lines."""\n    num_threads: int = setting(1, ge=1)',
        HELP,
    ),
    "an error text": ("registry.py", "there is no agent {agent!r}", "no agent is called {agent!r}", ERROR),
    "a plot": ("report/style.py", 'COLOURS = ("#0072b2"', 'COLOURS = ("#000000"', PLOT),
}  # fmt: skip


@pytest.fixture(scope="module")
def unchanged(copied: Path) -> dict[str, str]:
    """What each script prints without an edit; one interpreter for all, since its start takes longer than a script."""
    bodies = list(dict.fromkeys(body for *_, body in EDITS.values()))
    again = "\nimport shutil; shutil.rmtree('run', ignore_errors=True); print('====')\n"
    return dict(zip(bodies, output(copied, again.join(bodies)).split("====\n"), strict=True))


@pytest.mark.parametrize("change", EDITS)
def test_an_edit_takes_effect(copied: Path, unchanged: dict[str, str], change: str) -> None:
    file, old, new, body = EDITS[change]
    source = copied / "elegantrl" / file
    text = source.read_text()
    assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
    before = unchanged[body]
    source.write_text(text.replace(old, new))
    try:
        after = output(copied, body)
    finally:
        source.write_text(text)
    assert after != before
    if change == "a Gymnasium space":
        assert "action_space is Box of int64" in before and after.strip() == "64"
    if change == "a flag":
        assert "--log-colour" in after and "Colour of log lines." in after and "log-colour" not in before
    if change == "an error text":
        assert after == before.replace("there is no agent", "no agent is called")


MINE = '''
"""A package of a third party."""
import torch
from elegantrl.agents.dqn import AgentDQN, DQNConfig
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.data.memory import Replay
from elegantrl.execute.inline import InlineExecutor
from elegantrl.nets.policies import CategoricalPolicy

class Cautious(CategoricalPolicy):
    """A softmax over halved logits."""
    def output(self, obs):
        return 0.5 * super().output(obs)

class CautiousPPO(AgentPPO):
    config: PPOConfig
    def build_policy(self, kind, spec, device, **extra):
        return super().build_policy("mine:Cautious", spec, device, **extra)

class Newest(Replay):
    """Minibatches from the newest steps alone."""
    def draw(self):
        c, ring = self.config, self.ring
        newest = len(ring) - 1 - torch.arange(c.batch_size) % len(ring)
        return ring.gather(newest, self.setup.gamma, c.n_step)

class NewestDQN(AgentDQN):
    config: DQNConfig
    memory = "mine:Newest"

class Loud(InlineExecutor):
    def put(self, value):
        with open("puts.txt", "a") as file:
            file.write("put\\n")
        return super().put(value)
'''
DQN = "'TensorCartPole', max_steps=256, learning_starts=64, num_envs=4, batch_size=32, hidden=[16, 16]"
ADDITIONS = {
    "a new policy class": f"print(learned('mine:CautiousPPO', {PPO.partition(', ')[2]}\n{PPO}",
    "another replay memory": f"print(learned('mine:NewestDQN', {DQN}))\nprint(learned('dqn', {DQN}, folder='second'))",
}


@pytest.mark.parametrize("change", ADDITIONS)
def test_an_addition_from_outside_takes_effect(copied: Path, change: str) -> None:
    """Without registration, by import path."""
    (copied / "mine.py").write_text(MINE)
    shutil.rmtree(copied / "second", ignore_errors=True)
    body = ADDITIONS[change].replace(f"\n{PPO}", f"\n{PPO.replace('))', ', folder=' + repr('second') + '))')}")
    theirs, ours = output(copied, body).split()
    assert theirs != ours


def test_a_policy_from_outside_travels_to_worker_processes(copied: Path) -> None:
    (copied / "mine.py").write_text(MINE)
    settings = "max_steps=256, num_envs=4, num_workers=2, horizon=32, num_epochs=1"
    body = f"print(learned('mine:CautiousPPO', 'CartPole-v1', executor='process', {settings}))"
    assert len(output(copied, body).strip()) == 64


def test_an_executor_from_outside_is_used(copied: Path) -> None:
    (copied / "mine.py").write_text(MINE)
    output(copied, PPO.replace("'TensorCartPole',", "'TensorCartPole', executor='mine:Loud',"))
    assert (copied / "puts.txt").read_text().startswith("put")


def test_the_architecture_page_names_the_place_of_every_change() -> None:
    table = ARCHITECTURE.read_text().partition("## Where to make a change")[2]
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.MULTILINE))
    for change in ("a new policy class", "another replay memory", "an executor", *EDITS):
        assert change in rows, change
        for file in re.findall(r"`(elegantrl/[\w/]+\.py)`", rows[change]):
            assert (PACKAGE.parent / file).is_file(), file
    for change, (file, *_) in EDITS.items():
        assert f"`elegantrl/{file}`" in rows[change], change
