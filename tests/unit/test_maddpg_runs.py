"""MADDPG and MATD3: whole runs, masks and learning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from team_games import (
    CPU,
    Chase,
    Leaving,
    Pick,
    SizedSum,
    Sum,
    build,
)
from torch import Tensor

from elegantrl.data.replay import ReplayBuffer
from elegantrl.roles.group import GroupActor
from elegantrl.runtime.run import RunResult
from elegantrl.types import Weights

# ---- whole runs

REPLAY: dict[str, Any] = {
    "hidden": [8],
    "buffer_size": 90,
    "learning_starts": 24,
    "batch_size": 8,
    "horizon": 4,
    "updates_per_step": 0.4,
}
RUNS = [
    pytest.param("maddpg", Leaving, {"n_step": 3, "prioritized": True}, id="maddpg-masks"),
    pytest.param("matd3", Leaving, {"normalize_obs": True, "layer_norm": True}, id="matd3-masks"),
    pytest.param("maddpg", SizedSum, {"noise": "ou", "normalize_obs": True, "lr_schedule": "linear"}, id="maddpg-ou"),
    pytest.param("matd3", Sum, {"num_critics": 3, "target_critics": "subset", "warm_up_hold": 3}, id="matd3-subset"),
    pytest.param("matd3", Chase, {"max_grad_norm": 0.5, "reward_scale": 2.0}, id="matd3-zero-sum"),
]


def arguments(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"seed": 7, "num_envs": 3, "eval": {"interval": 10**9, "episodes": 2}, **REPLAY, **settings, **more}


def learned(found: dict[str, Any]) -> dict[str, Any]:
    """All that decides the rest of a run; scores of the extra evaluation at a stop do not."""
    names = ("env_steps", "seq", "episodes", "recent_returns")
    return {**found, "supervisor": {name: found["supervisor"][name] for name in names}}


@pytest.mark.parametrize(("agent", "env", "settings"), RUNS)
def test_a_resumed_run_equals_an_uninterrupted_one(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    tmp_path: Path,
    agent: str,
    env: Any,
    settings: Any,
) -> None:
    for folder, stops in (("whole", (120,)), ("parts", (60, 120)), ("again", (120,))):
        for i, stop in enumerate(stops):
            more = arguments(settings, max_steps=stop, resume=i > 0)
            torch.manual_seed(stop + len(folder))  # a run does not depend on torch's global stream
            run_quietly(agent, env, run_dir=tmp_path / folder, **more)
            if folder == "parts" and i == 0:
                half = learned(load_commit(tmp_path / folder))
    whole, split, again = (learned(load_commit(tmp_path / name)) for name in ("whole", "parts", "again"))
    for part in whole:
        assert hash_state(split[part]) == hash_state(whole[part]) == hash_state(again[part]), part
    assert whole["learner"]["agent"]["num_updates"] > half["learner"]["agent"]["num_updates"] > 0
    run_quietly(agent, env, run_dir=tmp_path / "other", **arguments(settings, max_steps=120) | {"seed": 8})
    assert hash_state(load_commit(tmp_path / "other")["learner"]) != hash_state(whole["learner"])


@pytest.mark.parametrize("frac", [0.0, 0.3, 1.0])
def test_a_masked_action_is_never_taken(frac: float) -> None:
    """Leaving raises an error if one is."""
    env = Leaving(16)
    agent = build(env.spec, "maddpg")
    agent.policy.random_frac.fill_(frac)
    for parameter in agent.policy.parameters():
        parameter.data.mul_(30)  # logits far apart
    group = GroupActor(env, agent.policy_spec, 0)
    rollout = group.sample(Weights(0, agent.policy.to_flat()), 40, 0).rollout
    mask, active = rollout.obs.mask, rollout.obs.active  # type: ignore[union-attr]
    taken = mask.gather(-1, rollout.action.unsqueeze(-1)).squeeze(-1)  # type: ignore[union-attr]
    assert taken[active].all()
    best, _ = agent.policy.act(rollout.obs, ())
    assert mask.gather(-1, best.unsqueeze(-1)).squeeze(-1)[active].all()  # type: ignore[union-attr]


# ---- learning


def improve(env: Any, name: str, steps: int, **settings: Any) -> Callable[[], Tensor]:
    """Train on a small game; returns a function that gives mean rewards [G] of the policy without exploration."""
    lanes = 32
    game = env(lanes)
    agent = build(game.spec, name, hidden=(32,), lr=3e-3, tau=0.02, gamma=0.5, **settings)
    group, replay = GroupActor(game, agent.policy_spec, 0), ReplayBuffer(20_000, game.spec, CPU)
    sampler = torch.Generator().manual_seed(1)
    for step in range(steps):
        agent.schedule(0 if step < 10 else 10**6)
        rollout = group.sample(Weights(step, agent.policy.to_flat()), 4, step).rollout
        replay.add(rollout)
        if step >= 10:
            agent.update(replay.sample(128, agent.hypers.gamma, 1, sampler))

    def score() -> Tensor:
        state = game.initial(2000)
        return game.dynamics(state, agent.policy.act(game.observe(state), ())[0])[1].mean(0)

    return score


@pytest.mark.parametrize("name", ["maddpg", "matd3"])
def test_a_team_learns_to_add_up(name: str) -> None:
    score = improve(Sum, name, 400)()
    # Random actions miss by 2/3 + 1/3 in the mean square, half of it each; standing still by 1/3.
    assert score.sum().item() > -0.03
    assert score[0] == score[1]


@pytest.mark.parametrize("name", ["maddpg", "matd3"])
def test_a_team_learns_to_pick(name: str) -> None:
    assert improve(Pick, name, 300)().sum().item() > 0.95  # 0.5 at random


def test_opponents_learn_without_end() -> None:
    score = improve(Chase, "maddpg", 200)()
    assert score.isfinite().all() and score.sum().item() == pytest.approx(0.0, abs=1e-6)
