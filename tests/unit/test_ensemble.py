"""Several trained policies as one, and several training states as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elegantrl.agents.fusion import fuse
from elegantrl.agents.ppo import AgentPPO, PPOConfig
from elegantrl.agents.sac import AgentSAC, SACConfig
from elegantrl.errors import ConfigError
from elegantrl.nets.normalize import ObsNorm, RunningStats
from elegantrl.registry import build_agent, find_agent
from elegantrl.runtime.run import RunResult
from elegantrl.store.trained import TrainedPolicy
from elegantrl.types import EnvSpec, Rollout

CPU = torch.device("cpu")
Run = Callable[..., RunResult]
MakeSpec = Callable[..., EnvSpec]
MakeRollout = Callable[..., Rollout]
SHORT: dict[str, Any] = {"hidden": [8], "horizon": 8, "num_envs": 2, "max_steps": 32, "eval": {"episodes": 2}}


@pytest.fixture
def runs(run_quietly: Run, tmp_path: Path) -> Callable[..., list[Path]]:
    def train(agent: str, env: str, number: int = 2) -> list[Path]:
        folders = [tmp_path / f"{agent}{seed}" for seed in range(number)]
        for seed, folder in enumerate(folders):
            run_quietly(agent, env, seed=seed, run_dir=folder, **SHORT)
        return folders

    return train


def test_continuous_actions_are_averaged_by_weight(runs: Callable[..., list[Path]]) -> None:
    folders = runs("ppo", "Pendulum-v1", 3)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    members = np.stack([TrainedPolicy.load(folder).act(obs).clip(-1, 1) for folder in folders])
    np.testing.assert_allclose(TrainedPolicy.ensemble(folders).act(obs), members.mean(0), atol=1e-6)
    weighted = TrainedPolicy.ensemble(folders, [1, 0, 3]).act(obs)
    np.testing.assert_allclose(weighted, 0.25 * members[0] + 0.75 * members[2], atol=1e-6)
    assert TrainedPolicy.ensemble(folders).act(obs[0]).shape == (1,)


def test_choices_are_made_by_averaged_probabilities_and_by_votes(runs: Callable[..., list[Path]]) -> None:
    obs = torch.randn(50, 4)
    folders = runs("ppo", "CartPole-v1")
    probs = [TrainedPolicy.load(f).policy.dist(obs).log_probs.exp() for f in folders]  # type: ignore[operator]
    chosen = TrainedPolicy.ensemble(folders).act(obs.numpy())
    assert chosen.tolist() == torch.stack(probs).mean(0).argmax(-1).tolist()
    folders = runs("dqn", "CartPole-v1", 3)
    votes = np.stack([TrainedPolicy.load(f).act(obs.numpy()) for f in folders]).sum(0)
    assert TrainedPolicy.ensemble(folders).act(obs.numpy()).tolist() == (votes >= 2).astype(int).tolist()


def test_runs_of_different_tasks_make_no_ensemble(runs: Callable[..., list[Path]]) -> None:
    pendulum, cart = runs("ppo", "Pendulum-v1", 1)[0], runs("dqn", "CartPole-v1", 1)[0]
    with pytest.raises(ConfigError, match="trained on CartPole-v1, whose observations or actions are not those of"):
        TrainedPolicy.ensemble([pendulum, cart])
    with pytest.raises(ConfigError, match="at least one"):
        TrainedPolicy.ensemble([])


def trained_state(spec: EnvSpec, rollout: MakeRollout, seed: int, **settings: Any) -> tuple[AgentPPO, dict[str, Any]]:
    torch.manual_seed(seed)
    agent = AgentPPO(spec, PPOConfig(hidden=(8,), normalize_obs=True, **settings), CPU, seed)
    for _ in range(seed + 1):
        agent.update(rollout(agent, "continuous", 8, 4))
    return agent, agent.training_state()


def test_fusion_averages_weights_and_moments_of_any_number_of_agents(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    spec = make_spec("continuous")
    agents, states = zip(*(trained_state(spec, make_rollout, seed) for seed in range(3)), strict=True)
    fused = fuse(states)
    fresh = AgentPPO(spec, PPOConfig(hidden=(8,), normalize_obs=True), CPU, 9)
    fresh.load_training_state(fused)
    for name in ("flat", "mean", "square", "count"):
        expected = torch.stack([getattr(agent.step, name) for agent in agents]).mean(0)
        torch.testing.assert_close(getattr(fresh.step, name), expected)
    assert fresh.num_updates == agents[0].num_updates
    fresh.update(make_rollout(fresh, "continuous", 8, 4))  # and it learns on


def test_fusing_two_is_the_documented_half_of_both_and_weights_shift_it(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    (a, state_a), (b, state_b) = (trained_state(make_spec("continuous"), make_rollout, seed) for seed in (0, 1))
    key = "policy.net.0.weight"
    half = fuse([state_a, state_b])["modules"][key]
    torch.testing.assert_close(half, (a.policy.net[0].weight + b.policy.net[0].weight).detach() / 2)
    quarter = fuse([state_a, state_b], [1, 3])["modules"][key]
    torch.testing.assert_close(quarter, (0.25 * a.policy.net[0].weight + 0.75 * b.policy.net[0].weight).detach())
    alone = fuse([state_a])
    assert all(torch.equal(value, state_a["modules"][name]) for name, value in alone["modules"].items())


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_the_inputs_of_a_fused_policy_do_not_jump(make_spec: MakeSpec, name: str) -> None:
    # C4: the policy's normaliser was averaged while the statistics were pooled.
    entry, spec = find_agent(name), make_spec("continuous")
    agents = [build_agent(entry, spec, entry.config(hidden=(8,), normalize_obs=True), CPU, seed) for seed in range(2)]
    parts = [torch.randn(10, 3), 5 + 2 * torch.randn(30, 3)]
    for agent, part in zip(agents, parts, strict=True):
        agent.observe(part)
    fused = build_agent(entry, spec, entry.config(hidden=(8,), normalize_obs=True), CPU, 9)
    fused.load_training_state(fuse([agent.training_state() for agent in agents]))
    norm = fused.policy.norm
    assert isinstance(norm, ObsNorm) and fused.obs_stats is not None
    before = norm.mean.clone(), norm.inv_std.clone()
    fused.obs_stats.write_to(norm)
    torch.testing.assert_close((norm.mean, norm.inv_std), before)
    torch.testing.assert_close(norm.mean, torch.cat(parts).mean(0))


def test_fusion_pools_what_was_seen(make_spec: MakeSpec, make_rollout: MakeRollout) -> None:
    parts = [torch.randn(10, 3), 5 + 2 * torch.randn(30, 3)]
    states = []
    for part in parts:
        stats = RunningStats(3, CPU)
        stats.update(part)
        states.append(stats.state_dict())
    whole = RunningStats(3, CPU)
    whole.update(torch.cat(parts))
    _, state = trained_state(make_spec("continuous"), make_rollout, 0)
    fused = fuse([{**state, "obs_stats": stats} for stats in states])["obs_stats"]
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(fused[name], value)


def test_fusion_leaves_its_arguments_alone_and_refuses_strangers(
    make_spec: MakeSpec, make_rollout: MakeRollout
) -> None:
    spec = make_spec("continuous")
    _, state = trained_state(spec, make_rollout, 0)
    before = {name: value.clone() for name, value in state["modules"].items()}
    fuse([state, state])
    assert all(torch.equal(value, state["modules"][name]) for name, value in before.items())
    stranger = AgentSAC(spec, SACConfig(hidden=(8,)), CPU, 0).training_state()
    with pytest.raises(ConfigError, match="different kinds"):
        fuse([state, stranger])
    wide = AgentPPO(spec, PPOConfig(hidden=(9,), normalize_obs=True), CPU, 0).training_state()
    with pytest.raises(ConfigError, match="different widths"):
        fuse([state, wide])
    with pytest.raises(ConfigError, match="not usable"):
        fuse([state, state], [1.0, -1.0])
