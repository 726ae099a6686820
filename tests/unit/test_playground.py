"""Tasks of MuJoCo Playground, which EnvPool has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from elegantrl.envs import check_env, make_env
from elegantrl.types import Leaf, Obs

TASK = "envpool:MuJoCoPlayground/Go1JoystickFlatTerrain-v1"


def test_what_a_robot_cannot_measure_is_for_the_critic_alone() -> None:
    env = make_env(TASK, 2, max_episode_steps=8)
    assert env.spec.obs == Obs(Leaf((48,)), state=Leaf((123,)))  # type: ignore[arg-type]
    check_env(env, steps=20)
    env.close()
    plain = make_env("envpool:MuJoCoPlayground/BarkourJoystick-v1", 2)
    assert plain.spec.obs == Leaf((465,))


def test_a_short_run(run_quietly: Callable[..., Any], tmp_path: Path) -> None:
    settings = {"num_envs": 4, "horizon": 8, "batch_size": 32, "max_steps": 64, "env_kwargs": {"max_episode_steps": 20}}
    result = run_quietly("ppo", TASK, run_dir=tmp_path / "run", eval={"episodes": 1}, **settings)
    assert result.load_policy().act([0.0] * 48).shape == (12,)
