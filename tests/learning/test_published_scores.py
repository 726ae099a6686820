"""Every algorithm reaches a published score within a published number of steps; `make slow` runs this."""

from __future__ import annotations

from pathlib import Path

import pytest

import elegantrl

SCORES = [
    ("ppo", "CartPole-v1", 475, 100_000),
    ("a2c", "CartPole-v1", 475, 500_000),
    ("dqn", "CartPole-v1", 475, 100_000),
    ("double_dqn", "CartPole-v1", 475, 100_000),
    ("dueling_dqn", "CartPole-v1", 475, 100_000),
    ("d3qn", "CartPole-v1", 475, 100_000),
    ("discrete_sac", "CartPole-v1", 475, 100_000),
    ("ppo", "Pendulum-v1", -200, 200_000),
    ("ddpg", "Pendulum-v1", -170, 20_000),
    ("td3", "Pendulum-v1", -170, 20_000),
    ("sac", "Pendulum-v1", -170, 20_000),
    ("mod_sac", "Pendulum-v1", -170, 20_000),
    ("redq", "Pendulum-v1", -170, 8_000),
    ("ppo", "LunarLander-v3", 200, 1_000_000),
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("agent", "env", "score", "steps"), SCORES)
def test_reaches_a_published_score(agent: str, env: str, score: float, steps: int, tmp_path: Path) -> None:
    """Guards against: L1, an algorithm that learns toy tasks only.

    Default settings; the best policy over 100 episodes that training never saw. C9: every seed must reach the score.
    """
    means = []
    for seed in (0, 1):
        run = elegantrl.train(agent, env, seed=seed, run_dir=tmp_path / str(seed))
        assert run.summary["env_steps"] <= 1.02 * steps
        means.append(run.load_policy().evaluate(episodes=100, seed=0).mean)
    assert min(means) >= score, f"mean returns {means}"
