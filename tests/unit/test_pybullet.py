"""Robots of PyBullet by their Gymnasium ids."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elegantrl.envs import check_env, env_names, make_env
from elegantrl.errors import ConfigError

IS_INSTALLED = importlib.util.find_spec("pybullet_envs_gymnasium") is not None
needs_it = pytest.mark.skipif(not IS_INSTALLED, reason="needs the extra pybullet: pip install 'elegantrl[pybullet]'")


@pytest.mark.skipif(IS_INSTALLED, reason="pybullet is installed")
def test_a_missing_package_is_named() -> None:
    sentence = r"^environment 'HopperBulletEnv-v0' needs pybullet_envs_gymnasium: pip install 'elegantrl\[pybullet\]'$"
    with pytest.raises(ConfigError, match=sentence):
        make_env("HopperBulletEnv-v0")
    assert ("HopperBulletEnv-v0", "pybullet") not in env_names()


@needs_it
@pytest.mark.filterwarnings("ignore")
def test_contract() -> None:
    assert ("HopperBulletEnv-v0", "pybullet") in env_names()
    env = make_env("HopperBulletEnv-v0", 2)
    assert env.spec.obs_dim == 15 and env.spec.action.dim == 3
    check_env(env, steps=60)
    env.close()


@needs_it
@pytest.mark.filterwarnings("ignore")
def test_a_short_run(run_quietly: Callable[..., Any], tmp_path: Path) -> None:
    result = run_quietly("ppo", "InvertedPendulumBulletEnv-v0", max_steps=2000, num_envs=2, run_dir=tmp_path / "run")
    assert result.summary["env_steps"] >= 2000 and (tmp_path / "run" / "best.safetensors").exists()
