"""Populations of real runs: what a copy takes over, fusion, and the same lineage after kills and in processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import elegantrl
from elegantrl.agents.fusion import fuse
from elegantrl.population.config import PopulationConfig
from elegantrl.population.evolve import completed
from elegantrl.population.fold import PopulationState
from elegantrl.population.log import read_population
from elegantrl.population.member import Outcome, Task, Trainer
from elegantrl.store.commits import Store
from elegantrl.store.trained import TrainedPolicy

TINY: dict[str, Any] = {"agent": {"hidden": [8], "horizon": 16, "batch_size": 16}, "env": {"num_envs": 2}}
TINY |= {"eval": {"max_episode_steps": 20}}
REPLAY = TINY | {"agent": TINY["agent"] | {"learning_starts": 16, "buffer_size": 1000}}
SMALL: dict[str, Any] = {"members": 4, "periods": 3, "period_steps": 64, "episodes": 2, "settings": TINY}


def trainer(folder: Path, agent: str, env: str = "TensorCartPole", **settings: Any) -> Trainer:
    given = {"env": env, "agents": (agent,), "mode": "generational", **SMALL, **settings}
    given["settings"] = TINY if agent == "ppo" else REPLAY
    return Trainer(completed(PopulationConfig(**given), env), env, str(folder))


def task(role: Trainer, key: str, parents: tuple[str, ...] = (), steps: int = 64, **hypers: float) -> Task:
    from elegantrl.population.space import Spaces

    agent, tuned = Spaces(role.config).start(0)
    return Task(f"runs/{key}", agent, tuned | hypers, tuple(f"runs/{p}" for p in parents), 7, 11, steps, None)


def learner_state(folder: Path, key: str) -> dict[str, Any]:
    commit = Store(folder / "runs" / key).latest_valid()
    assert commit is not None
    return commit.load("learner")


def tensors(state: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    return {k: v for name, part in state.items() for k, v in tensors(part, f"{prefix}/{name}").items()} if isinstance(
        state, dict
    ) else {}  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "env"), [("ppo", "TensorCartPole"), ("d3qn", "TensorCartPole"), ("sac", "TensorPendulum")]
)
def test_a_copy_takes_over_everything_but_hyper_parameters_and_streams(tmp_path: Path, agent: str, env: str) -> None:
    # V1: a pod silently found no parent; here networks, moments, counters and memory are compared.
    role = trainer(tmp_path, agent, env)
    parent = role.train(task(role, "parent"))
    assert parent.key == "runs/parent" and parent.steps == 64 and parent.score is not None
    # A period of no steps stores what it started with.
    child = role.train(task(role, "child", ("parent",), steps=0, lr=0.5)._replace(seed=8))
    assert child.steps == 64
    before, after = learner_state(tmp_path, "parent"), learner_state(tmp_path, "child")
    assert after["agent"]["num_updates"] == before["agent"]["num_updates"] > 0
    assert after["env_steps"] == before["env_steps"] == 64
    old, new = tensors(before), tensors(after)
    assert old.keys() == new.keys()
    different = {name for name in old if not torch.equal(old[name], new[name])}
    own = {"/agent/generator", "/agent/modules/hypers.lr"} | {n for n in old if n.endswith("/lr")}
    assert {"/agent/generator", "/agent/modules/hypers.lr"} <= different
    allowed = own | {"/memory/sampler", "/memory/truncated"}  # open episodes end
    assert different <= allowed
    assert float(new["/agent/modules/hypers.lr"]) == 0.5
    assert all(float(new[name]) == 0.5 for name in new if name.startswith("/agent/optimizers") and name.endswith("/lr"))
    moments = [name for name in new if name.endswith("/square")]
    assert moments and all(new[name].abs().sum() > 0 for name in moments)


def test_a_period_is_a_function_of_its_task(tmp_path: Path, hash_state: Any) -> None:
    first, second = trainer(tmp_path / "a", "d3qn"), trainer(tmp_path / "b", "d3qn")
    for role in (first, second):
        role.train(task(role, "parent"))
    one, two = (role.train(task(role, "child", ("parent",), steps=128)) for role in (first, second))
    assert one == two and one.steps == 128
    states = [hash_state(learner_state(tmp_path / name, "child")) for name in "ab"]
    assert states[0] == states[1]
    # A stored period is not trained again: its result is read, whatever else would follow from the task.
    assert first.train(task(first, "child", ("parent",), steps=10_000)) == one
    assert first.evaluate("runs/child", 11) == Outcome("runs/child", 0, one.score, one.ci95)


def test_pods_are_fused_with_their_moments(tmp_path: Path) -> None:
    # V7: any number of pods, and optimisers too.
    role = trainer(tmp_path, "ppo")
    for pod in range(3):
        role.train(task(role, f"pod{pod}")._replace(seed=pod, eval_seed=None))
    fused = role.train(task(role, "fused", ("pod0", "pod1", "pod2"), steps=0))
    assert fused.steps == 64 and fused.score is not None
    wanted = fuse([learner_state(tmp_path, f"pod{i}")["agent"] for i in range(3)])
    found = learner_state(tmp_path, "fused")["agent"]
    for part in ("modules", "optimizers"):
        for name, tensor in tensors(wanted[part]).items():
            if "hypers." not in name:  # those are of its own, and an average of equal numbers is rounded
                assert torch.equal(tensors(found[part])[name], tensor) or name.endswith("/lr"), name
    weights = [tensors(learner_state(tmp_path, f"pod{i}")["agent"]["optimizers"]) for i in range(3)]
    name = next(name for name in weights[0] if name.endswith("/mean"))
    assert not torch.equal(weights[0][name], weights[1][name])
    torch.testing.assert_close(tensors(found["optimizers"])[name], sum(w[name] for w in weights) / 3)


def evolve(folder: Path, **settings: Any) -> Any:
    given = {"agents": ("ppo", "a2c"), "mode": "generational", "executor": "inline", **SMALL, **settings}
    return elegantrl.evolve("TensorCartPole", run_dir=folder, verbose=False, **given)


def facts(state: PopulationState) -> tuple[Any, ...]:
    return state.lineage, state.board, [(m.id, m.curve, m.status) for m in state.members.values()]


def test_pods_through_a_whole_population(tmp_path: Path) -> None:
    result = evolve(tmp_path / "p", members=2, periods=2, pods=2, agents=("ppo",))
    state = read_population(tmp_path / "p")
    assert state.generation == 2 and state.total_steps == 2 * 2 * 2 * 64
    assert facts(state) == facts(result.state)
    assert all([point.steps for point in member.curve] == [64, 128] for member in state.members.values())
    assert not [key for key in os.listdir(tmp_path / "p" / "runs") if "-p" in key]  # runs of pods are removed


@pytest.mark.parametrize("mode", ["generational", "tournament"])
def test_the_champion_and_the_ensemble_load_as_one_policy(tmp_path: Path, mode: str) -> None:
    result = evolve(tmp_path / "p", mode=mode, agents=("ppo", "d3qn"), members=2, periods=2, settings=REPLAY)
    entry = result.state.champion
    champion = TrainedPolicy.load(tmp_path / "p" / "champion")
    stored = TrainedPolicy.load(tmp_path / "p" / entry.run.key)
    assert torch.equal(champion.policy.to_flat(), stored.policy.to_flat())
    assert champion.config.agent_name == entry.run.agent and champion.config.agent.lr == entry.run.hypers["lr"]
    ensemble = TrainedPolicy.load(tmp_path / "p" / "ensemble")
    obs = torch.zeros(5, 4).uniform_(-0.1, 0.1).numpy()
    members = [TrainedPolicy.load(tmp_path / "p" / e.run.key) for e in result.state.board[:3]]
    votes = torch.stack([m.policy.vote(torch.from_numpy(obs)) for m in members]).mean(0)
    assert ensemble.act(obs).tolist() == votes.argmax(-1).tolist() == result.load_ensemble().act(obs).tolist()
    board = json.loads((tmp_path / "p" / "leaderboard.json").read_text())
    assert board["leaderboard"][0]["score"] == result.best_return and board["stop_reason"] == "complete"


@pytest.mark.parametrize("executor", ["process", pytest.param("ray", marks=pytest.mark.slow)])
def test_other_executors_give_the_lineage_of_one_process(tmp_path: Path, executor: str) -> None:
    inline = evolve(tmp_path / "inline")
    others = evolve(tmp_path / "others", executor=executor, max_running=3)
    assert facts(inline.state) == facts(others.state)


def kill_and_resume(folder: Path, moments: int, seed: int) -> int:
    """Kill a controller at random moments and continue it to its end; returns how often it was killed."""
    context, chance, kills = multiprocessing.get_context("fork"), random.Random(seed), 0
    while True:
        has_begun = (folder / "log").exists() and (folder / "log").stat().st_size > 0
        child = context.Process(target=evolve, args=(folder,), kwargs={"resume": has_begun})
        child.start()
        if kills < moments:
            child.join(chance.uniform(0.0, 0.6))
            if child.exitcode is None:
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        if child.exitcode == 0:
            return kills
        time.sleep(0)


def test_kills_leave_the_lineage_as_it_is(tmp_path: Path) -> None:
    whole = evolve(tmp_path / "whole")
    assert kill_and_resume(tmp_path / "killed", 5, seed=0) > 0
    assert facts(read_population(tmp_path / "killed")) == facts(whole.state)
    assert sorted(os.listdir(tmp_path / "killed" / "runs")) == sorted(os.listdir(tmp_path / "whole" / "runs"))


@pytest.mark.slow
def test_twenty_kills_leave_the_lineage_as_it_is(tmp_path: Path) -> None:
    whole = evolve(tmp_path / "whole")
    kills = number = 0
    while kills < 20:
        number += 1
        kills += kill_and_resume(tmp_path / f"killed{number}", 20 - kills, seed=number)
        assert facts(read_population(tmp_path / f"killed{number}")) == facts(whole.state)
