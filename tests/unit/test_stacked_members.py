"""A population on one device: selection, copies, scores, files and refusals."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import elegantrl
from elegantrl.agents.ppo import PPOConfig
from elegantrl.agents.sac import SACConfig
from elegantrl.envs import make_env
from elegantrl.errors import ConfigError
from elegantrl.population.stacked.actor import StackedActor, StackedEvaluator
from elegantrl.population.stacked.agent import policy_rows
from elegantrl.population.stacked.evolution import Tunable, choose_parents, evolve, perturb, tunables_of
from elegantrl.population.stacked.learner import StackedLearner, StackedReplay
from elegantrl.population.stacked.train import Standing
from elegantrl.registry import find_agent
from elegantrl.roles.evaluator import Evaluator
from elegantrl.store.trained import TrainedPolicy
from elegantrl.types import Weights

CPU = torch.device("cpu")
NAN = math.nan


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(name: str, env: str, members: int, **settings: Any) -> tuple[StackedLearner, StackedActor]:
    """A population with two environments for each member."""
    vec_env, entry = make_env(env, 2 * members), find_agent(name)
    configs = [entry.config(hidden=(4,), lr=1e-3 * (1 + p), **settings) for p in range(members)]
    spec = replace(vec_env.spec, num_envs=2)
    learner = StackedLearner(entry, configs, spec, CPU, range(members))
    return learner, StackedActor(vec_env, learner.agent, learner.members, range(members))  # type: ignore[arg-type]


# ---- selection


def test_the_worst_copy_the_best_and_the_others_stay() -> None:
    scores = torch.tensor([3.0, 1.0, 7.0, 5.0, 8.0, 2.0, 4.0, 6.0])
    seen = set()
    for seed in range(20):
        parents = choose_parents(scores, 0.25, generator(seed)).tolist()
        assert [parents[p] for p in (0, 2, 3, 4, 6, 7)] == [0, 2, 3, 4, 6, 7]
        seen |= {parents[1], parents[5]}
    assert seen == {2, 4}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([NAN, 1.0, 2.0, 3.0], [3, 1, 2, 3]),  # a NaN is the worst
        ([NAN, NAN, 2.0, 3.0], [3, 3, 2, 3]),  # each of them is replaced
        ([NAN, NAN, NAN, -3.0], [3, 3, 3, 3]),
        ([NAN, NAN, NAN, NAN], [0, 1, 2, 3]),  # nothing to copy
        ([NAN, -math.inf, 2.0, 3.0], [3, 1, 2, 3]),
    ],
)
def test_a_nan_never_ranks(scores: list[float], expected: list[int]) -> None:
    for seed in range(5):
        assert choose_parents(torch.tensor(scores), 0.25, generator(seed)).tolist() == expected


def test_with_fewer_ranked_than_copied_the_best_is_copied() -> None:
    for seed in range(5):
        assert choose_parents(torch.tensor([NAN, NAN, NAN, 1.0]), 0.5, generator(seed)).tolist() == [3, 3, 3, 3]


def test_only_chosen_members_change_their_settings_and_stay_within_limits() -> None:
    learner, _ = small("ppo", "TensorCartPole", 4, gamma=0.9, clip=0.2)
    hypers = learner.agent.hypers
    tunables = [Tunable("lr", 1e-5, 1.1e-3, "log"), Tunable("gamma", 0.9, 1.0, "linear")]
    chosen = torch.tensor([True, True, False, True])
    perturb(learner.agent, tunables, chosen, generator())
    lr, gamma = hypers.lr.tolist(), hypers.gamma.tolist()
    assert lr[2] == pytest.approx(3e-3) and gamma[2] == pytest.approx(0.9)
    assert any(lr[0] == pytest.approx(value) for value in (8e-4, 1e-3, 1.1e-3))  # the last: 1e-3 * 1.25, cut
    assert lr[3] == pytest.approx(1.1e-3)  # both ways it is above the limit
    assert all(min(abs(gamma[p] - 0.9), abs(gamma[p] - 0.91)) < 1e-6 for p in (0, 1, 3))
    assert hypers.clip.tolist() == pytest.approx([0.2] * 4)


def test_tunables_are_those_with_an_effect() -> None:
    plain = PPOConfig(gamma=0.9999)
    assert [t.name for t in tunables_of([plain], None)] == ["gamma", "lr", "gae_lambda", "clip"]
    assert tunables_of([plain], ["gamma"]) == [Tunable("gamma", 0.9, 0.9999, "linear")]
    both = [plain, replace(plain, entropy_coef=0.01)]
    assert "entropy_coef" in [t.name for t in tunables_of(both, None)]
    with pytest.raises(ConfigError, match="tune='entropy_coef' is no setting that has an effect here"):
        tunables_of([plain], ["entropy_coef"])
    assert [t.name for t in tunables_of([SACConfig()], None)] == ["gamma", "lr", "tau"]


# ---- copies


def test_a_copy_takes_over_networks_moments_statistics_and_replay() -> None:
    replay = {"learning_starts": 8, "batch_size": 4, "horizon": 8, "buffer_size": 40, "normalize_obs": True}
    learner, actor = small("sac", "TensorPendulum", 3, **replay)
    for _ in range(2):
        learner.update(actor.roll_out(8))
    before = [member.training_state() for member in learner.members]
    memory = learner.memory
    assert isinstance(memory, StackedReplay)
    obs = memory.ring.obs[: memory.ring.filled].clone().unflatten(1, (3, 2))
    newest = memory.ring.head - 1
    assert not memory.ring.truncated[newest].any()
    learner.copy_members(torch.tensor([0, 0, 2]))
    after = [member.training_state() for member in learner.members]
    for p, parent in enumerate((0, 0, 2)):
        for part in ("modules", "optimizers", "obs_stats"):
            torch.testing.assert_close(after[p][part], {**before[parent][part]}, rtol=0, atol=0)
        copied = memory.ring.obs[: memory.ring.filled].unflatten(1, (3, 2))[:, p]
        assert torch.equal(copied, obs[:, parent])
    # The lanes of a copy go on with its own episodes: no return runs from the parent's into them.
    assert memory.ring.truncated[newest].tolist() == [False, False, True, True, False, False]


class NoHostReads(TorchDispatchMode):
    """Refuses kernels whose results the host must read before it can go on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "env", "settings"),
    [
        ("ppo", "TensorCartPole", {"horizon": 8, "batch_size": 8, "num_epochs": 2}),
        ("sac", "TensorPendulum", {"horizon": 8, "batch_size": 4, "learning_starts": 8, "buffer_size": 40}),
    ],
)
def test_updates_and_evolution_never_wait_for_the_device(name: str, env: str, settings: dict[str, Any]) -> None:
    learner, actor = small(name, env, 4, **settings)
    learner.update(actor.roll_out(8))
    rollout = actor.roll_out(8)
    tunables = tunables_of([member.config for member in learner.members], None)
    scores, stream = torch.tensor([1.0, 2.0, NAN, 4.0]), generator()
    with NoHostReads():
        learner.update(rollout)
        parents = evolve(learner, scores, tunables, 0.25, stream)
    assert parents.tolist() == [0, 1, 3, 3]
    step = next(iter(learner.agent.grad_steps().values()))
    torch.testing.assert_close(step.lr, learner.agent.hypers.lr)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoHostReads():
        scores[0].item()


# ---- scores


def test_scores_of_all_at_once_are_those_of_each_alone() -> None:
    learner, _ = small("ppo", "TensorCartPole", 3)
    for step in learner.agent.grad_steps().values():
        step.flat.normal_(generator=generator())  # policies that differ
    evaluator = StackedEvaluator(make_env("TensorCartPole", 12), learner.agent, 3, 600)  # type: ignore[arg-type]
    found = evaluator.scores(policy_rows(learner.agent), 5).tolist()
    alone = Evaluator(make_env("TensorCartPole", 4), learner.agent.policy_spec)
    expected = [alone.score(Weights(0, member.policy.to_flat()), 5).mean for member in learner.members]
    assert found == expected and len(set(found)) == 3


# ---- whole populations

TINY: dict[str, Any] = {"num_envs": 4, "horizon": 16, "hidden": (8,), "batch_size": 16, "max_steps": 192}


def test_a_population_evolves_and_each_member_loads(tmp_path: Path) -> None:
    shown: list[Standing] = []
    lr = [1e-3, 1e18, 2e-3, 3e-3]  # the second diverges at once
    common = {"members": 4, "period_steps": 64, "lr": lr, "eval": {"episodes": 2}, **TINY}
    result = elegantrl.train_population("ppo", "TensorCartPole", run_dir=tmp_path / "a", show=shown.append, **common)
    assert [s.env_steps for s in shown] == [64, 128, 192] and shown == result.standings
    first, _, last = shown
    assert math.isnan(first.returns[1]) and first.parents[1] != 1 and 1 not in first.parents
    assert first.settings["lr"] == pytest.approx(lr)
    assert not any(map(math.isnan, last.returns)) and last.parents == [0, 1, 2, 3]
    parent = first.parents[1]
    ratio = shown[1].settings["lr"][1] / lr[parent]
    assert any(ratio == pytest.approx(factor) for factor in (0.8, 1.0, 1.25))
    for p in range(4):
        policy = TrainedPolicy.load(tmp_path / "a" / f"member-0{p}")
        assert policy.config.train.seed == p
        assert policy.evaluate(2).mean > 0
    assert result.load_policy().folder == result.member_folder(result.champion)
    assert result.returns[result.champion] == max(result.returns)
    saved = json.loads((tmp_path / "a" / "stacked.json").read_text())
    assert saved["standings"][0]["returns"][1] is None and saved["champion"] == result.champion
    again = elegantrl.train_population("ppo", "TensorCartPole", run_dir=tmp_path / "b", **common)
    assert repr(again.standings) == repr(result.standings) and again.returns == result.returns
    with pytest.raises(ConfigError, match="a already holds a population; choose another run_dir"):
        elegantrl.train_population("ppo", "TensorCartPole", run_dir=tmp_path / "a", **common)


def test_without_periods_members_stay_independent(tmp_path: Path) -> None:
    result = elegantrl.train_population(
        "dqn", "TensorCartPole", members=2, num_envs=2, horizon=8, hidden=(8,), max_steps=64, learning_starts=16,
        batch_size=8, buffer_size=64, seed=4, run_dir=tmp_path / "a", eval={"interval": 32, "episodes": 2},
    )  # fmt: skip
    assert [s.env_steps for s in result.standings] == [32, 64]
    assert all(s.parents == [0, 1] for s in result.standings)
    assert TrainedPolicy.load(result.member_folder(1)).config.train.seed == 5


def test_an_interrupt_ends_the_population_with_its_policies_saved(tmp_path: Path) -> None:
    result = elegantrl.train_population(
        "ppo", "TensorCartPole", members=2, run_dir=tmp_path / "a", eval={"interval": 64, "episodes": 2},
        show=lambda _: os.kill(os.getpid(), signal.SIGINT), **TINY,
    )  # fmt: skip
    assert [s.env_steps for s in result.standings] == [64]
    assert TrainedPolicy.load(result.member_folder(1)).evaluate(2).mean > 0


@pytest.mark.parametrize(
    ("agent", "env", "settings", "message"),
    [
        ("ppo", "CartPole-v1", {}, "a stacked population needs a tensor environment, and CartPole-v1 is none"),
        ("ppo", "TensorCartPole", {"members": 0}, "members=0 is too small"),
        ("ppo", "TensorCartPole", {"members": 1, "period_steps": 100}, "members=1 is too small"),
        ("ppo", "TensorCartPole", {"period_steps": 0}, "period_steps=0 is too small"),
        ("ppo", "TensorCartPole", {"replaced": 0.6}, "replaced=0.6 is out of range"),
        ("ppo", "TensorCartPole", {"lr": [1e-3]}, "lr has 1 values for members=2; give one for each member"),
        ("ppo", "TensorCartPole", {"lr": [1e-3, -1.0]}, "agent.lr=-1.0 is out of range"),
        ("ppo", "TensorCartPole", {"num_workers": 2}, "execute.num_workers has no effect on a stacked population"),
        ("ppo", "TensorCartPole", {"target_return": 9.0}, "train.target_return has no effect on a stacked population"),
        ("ppo", "TensorCartPole", {"tune": ["hidden"]}, "tune='hidden' is no setting that has an effect here"),
        ("ppo", "TensorCartPole", {"target_kl": 0.1}, "agent.target_kl=0.1 ends the epochs of each at another time"),
        ("ppo", "TensorCartPole", {"memory": "gru"}, "agent.memory=gru keeps other data for each of them"),
        ("dqn", "TensorCartPole", {"prioritized": True}, "agent.prioritized=True keeps other data for each of them"),
        ("redq", "TensorPendulum", {}, "AgentREDQ does not take the same steps for all of them"),
        ("mod_sac", "TensorPendulum", {}, "AgentModSAC does not take the same steps for all of them"),
        ("mappo", "TensorSpread", {}, "observations of TensorSpread are not one vector of floats"),
    ],
)
def test_bad_input_is_one_sentence(
    agent: str, env: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        elegantrl.train_population(agent, env, run_dir=tmp_path / "run", **{"members": 2, **settings})
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_rows_of_members_and_columns_of_the_stack_are_the_same_memory() -> None:
    learner, _ = small("sac", "TensorPendulum", 2)
    stacked: Tensor = learner.agent.critic.net[0].weight  # type: ignore[union-attr, index, assignment]
    own: Tensor = learner.members[1].critic.net[0].weight  # type: ignore[union-attr, index, assignment]
    stacked.data[1].fill_(3.0)
    assert bool((own == 3.0).all()) and stacked.shape == (2, *own.shape)
    learner.members[0].hypers.lr.fill_(0.5)
    assert learner.agent.hypers.lr.tolist()[0] == 0.5


def test_the_command_line(tmp_path: Path, cli: Callable[..., Any]) -> None:
    words = ["evolve", "TensorCartPole", "--stacked", "--members", "2", "--periods", "2", "--period-steps", "512"]
    words += ["--episodes", "2", "--agents"]
    outcome = cli(*words, "ppo", "--run-dir", tmp_path / "run")
    assert outcome.code == 0 and "512 steps per member" in outcome.out and "elegantrl eval" in outcome.out
    assert cli("eval", tmp_path / "run" / "member-01", "--episodes", "1").code == 0
    assert "trains members of one agent, not of 2" in cli(*words, "ppo", "dqn").sentence
    assert "population.board has no effect with --stacked" in cli(*words, "ppo", "--board", "3").sentence
    assert "nothing to resume" in cli(*words, "ppo", "--resume").sentence
    assert "nothing to resume" in cli(*words, "ppo", "--restartable").sentence
    given = ("--settings", "env.num_envs=4", "agent.hidden=[8]", "--run-dir", tmp_path / "other")
    assert cli(*words, "ppo", *given).code == 0
    assert TrainedPolicy.load(tmp_path / "other" / "member-00").config.agent.hidden == (8,)
