"""mjlab's cart-pole on the CPU: what RSL-RL trains is the same task, and PPO balances it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from elegantrl.cli.main import main
from elegantrl.envs import check_env, make_env
from elegantrl.envs.isaac import IsaacLabVecEnv, RslVecEnv
from elegantrl.errors import ConfigError, SpecError
from elegantrl.types import Leaf, Obs

pytestmark = pytest.mark.slow
TASK = "mjlab:Mjlab-Cartpole-Balance"


@pytest.fixture(autouse=True)
def mjlab() -> Any:
    reason = "needs mjlab in an environment of its own: pip install 'elegantrl[mjlab]'"
    return pytest.importorskip("mjlab", reason=reason)


def test_the_last_observation_is_the_successor_of_the_last_action() -> None:
    env = make_env(TASK, 3, episode_length_s=1.0)
    assert isinstance(env, IsaacLabVecEnv)
    assert env.spec.obs == Obs(Leaf((5,)), state=Leaf((5,))) and env.spec.max_episode_steps == 20  # type: ignore[arg-type]
    longer = make_env(TASK, 3)
    obs, other = env.reset(0), longer.reset(0)
    assert torch.equal(obs.seen, other.seen)
    for index in range(1, 21):
        action = torch.full((3, 1), (-1.0) ** index)
        step, expected = env.step(action), longer.step(action)
        assert torch.equal(step.next_obs.seen, expected.obs.seen) and torch.equal(step.reward, expected.reward)
        assert step.truncated.tolist() == [index == 20] * 3
    assert not torch.equal(step.obs.seen, step.next_obs.seen)


def test_the_wrapper_for_rsl_rl_keeps_the_contract() -> None:
    from mjlab.rl import RslRlVecEnvWrapper

    raw = make_env(TASK, 3, episode_length_s=1.0).env  # type: ignore[attr-defined]
    raw.cfg.auto_reset = True
    env = make_env(RslRlVecEnvWrapper(raw))
    assert isinstance(env, RslVecEnv)
    check_env(env, steps=50)


def test_bad_names_are_answered() -> None:
    with pytest.raises(
        SpecError, match="unknown task of mjlab 'Mjlab-Cartpole-Balanse'; did you mean 'Mjlab-Cartpole-Bal"
    ):
        make_env("mjlab:Mjlab-Cartpole-Balanse")
    with pytest.raises(ConfigError, match="its configuration has no field 'episode_length'"):
        make_env(TASK, 2, episode_length=3)


@pytest.mark.timeout(3600)
def test_ppo_balances_the_pole(tmp_path: Path) -> None:
    """The highest return is 50: a thousand steps of at most 0.05."""
    assert main(["train", "ppo", TASK, "--seed", "1", "--run-dir", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stop_reason"] == "target_return" and summary["best_return"] >= 49
