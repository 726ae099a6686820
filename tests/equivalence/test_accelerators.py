"""What is read is what runs: an edited loss counts with default settings, and without ``fast`` everything works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import elegantrl
from elegantrl.agents.ppo import AgentPPO
from elegantrl.agents.sac import AgentSAC
from elegantrl.types import Metrics

PACKAGE = Path(elegantrl.__file__).parent
RunQuietly = Callable[..., elegantrl.RunResult]
SHORT: dict[str, dict[str, Any]] = {
    "ppo": {"env": "TensorCartPole", "max_steps": 1024, "num_envs": 8, "horizon": 32},
    "sac": {"env": "TensorPendulum", "max_steps": 160, "learning_starts": 100, "hidden": [16, 16], "batch_size": 32},
}


def learned_policy(run: RunQuietly, agent: str, folder: Path) -> Tensor:
    """The parameters of the policy's network after a short run with default gradients."""
    settings = {**SHORT[agent], "eval": {"interval": 10**9, "episodes": 1, "max_episode_steps": 20}}
    policy = run(agent, settings.pop("env"), run_dir=folder, seed=3, executor="inline", **settings).load_policy().policy
    return torch.cat([p.detach().reshape(-1) for p in policy.parameters()])


@pytest.mark.parametrize(("name", "agent", "loss"), [("ppo", AgentPPO, "policy_loss"), ("sac", AgentSAC, "actor_loss")])
def test_a_patched_loss_changes_what_a_run_learns(
    run_quietly: RunQuietly, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, agent: type, loss: str
) -> None:
    # F1: with hand-derived gradients a patch of the loss had no effect, and nothing said so.
    before = learned_policy(run_quietly, name, tmp_path / "before")
    assert torch.equal(before, learned_policy(run_quietly, name, tmp_path / "again"))
    original = getattr(agent, loss)

    def turned_around(self: Any, *args: Any) -> tuple[Tensor, Metrics]:
        value, metrics = original(self, *args)
        return -value, metrics

    monkeypatch.setattr(agent, loss, turned_around)
    after = learned_policy(run_quietly, name, tmp_path / "after")
    assert not torch.allclose(before, after, atol=1e-3)


# ---- on disk

TRAIN = """
import sys, tempfile, hashlib
from pathlib import Path
import elegantrl

def run(agent, env, **settings):
    with tempfile.TemporaryDirectory() as folder:
        settings = {"eval": {"interval": 10**9, "episodes": 1, "max_episode_steps": 20}, "seed": 3, **settings}
        result = elegantrl.train(agent, env, run_dir=Path(folder) / "run", **settings)
        return result.load_policy().policy.state_dict()

if __name__ == "__main__":
    assert elegantrl.__file__.startswith(sys.argv[1]), elegantrl.__file__
"""


def copied_package(folder: Path) -> Path:
    shutil.copytree(PACKAGE, folder / "elegantrl")
    return folder


def run_script(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Train with the copy of the package that lies in ``folder``, in an interpreter of its own."""
    script = folder / "script.py"
    script.write_text(TRAIN + "".join(f"    {line}\n" for line in body.splitlines()))
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, str(script), str(folder)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def test_an_edited_line_of_ppo_counts(tmp_path: Path) -> None:
    # F1: whoever edited the clip in the file trained with the old one.
    body = (
        "weights = run('ppo', 'TensorCartPole', max_steps=1024, num_envs=8, horizon=32, lr=0.01, executor='inline')\n"
        "print('weights', hashlib.sha256(b''.join(x.numpy().tobytes() for x in weights.values())).hexdigest())\n"
    )
    folder = copied_package(tmp_path)
    first = run_script(folder, body)
    source = folder / "elegantrl" / "agents" / "ppo.py"
    line = "limit_B = torch.addcmul(b.advantage, self.hypers.clip, b.advantage.abs())"
    text = source.read_text()
    assert line in text
    source.write_text(text.replace(line, line.replace("self.hypers.clip", "0.1 * self.hypers.clip")))
    second = run_script(folder, body)
    digests = [
        [line for line in done.stdout.splitlines() if line.startswith("weights ")][-1] for done in (first, second)
    ]
    assert digests[0] != digests[1]
    assert "gradients: by hand (checked against autograd)" in first.stdout + first.stderr
    assert "gradients: autograd (the losses of AgentPPO are not those known by hand)" in second.stdout + second.stderr


def test_without_fast_the_library_works(tmp_path: Path) -> None:
    """Deleting the package of accelerators leaves PPO, SAC and DQN that train, in one process and in several."""
    folder = copied_package(tmp_path)
    shutil.rmtree(folder / "elegantrl" / "fast")
    short = {"learning_starts": 64, "batch_size": 32, "hidden": [16, 16], "max_steps": 128}
    runs = [
        ("ppo", "CartPole-v1", {"max_steps": 512, "num_envs": 4, "horizon": 32}),
        ("sac", "Pendulum-v1", short),
        ("dqn", "CartPole-v1", {**short, "num_envs": 2, "horizon": 4}),
    ]
    lines = [
        f"run({agent!r}, {env!r}, executor={executor!r}, **{settings!r})"
        for agent, env, settings in runs
        for executor in ("inline", "process")
    ]
    lines.append("run('ppo', 'CartPole-v1', max_steps=256, num_envs=4, horizon=32, gradients='compiled')")
    lines.append("assert 'elegantrl.fast' not in sys.modules")
    run_script(folder, "\n".join(lines))
