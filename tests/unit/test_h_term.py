"""The Hamiltonian term: its energy, its windows, and that it changes nothing when off."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from elegantrl.agents.h_term import HTerm, HTermConfig, energy
from elegantrl.agents.ppo import PPOConfig
from elegantrl.data import trajectories
from elegantrl.data.trajectories import TrajectoryStore, scale_to_unit
from elegantrl.nets.distributions import DiagGaussian
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import CategoricalPolicy, DeterministicPolicy, GaussianPolicy, Policy, SquashedPolicy
from elegantrl.registry import find_agent
from elegantrl.roles import learner as learner_module
from elegantrl.roles.learner import Learner
from elegantrl.runtime.run import RunResult
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Rollout

CPU = torch.device("cpu")
MakeSpec = Callable[..., EnvSpec]


def test_energy_of_a_window_by_hand() -> None:
    excess = torch.tensor([[0.5, -1.0, 3.0], [-20.0, 1.0, 1.0]])
    weight = torch.tensor([[0.8, 0.64, 0.512], [1.0, 0.0, 0.5]])
    # cumulative: 0.5, -0.5, 2.5 -> 2; and -20 -> -16, -19 -> -16, -18 -> -16
    first = -(0.8 * 0.5 - 0.64 * 0.5 + 0.512 * 2.0)
    second = -(-16.0 - 0.5 * 16.0)
    assert energy(excess, weight).item() == pytest.approx((first + second) / 2)


def lanes(reward: list[list[float]], ended: list[list[int]], *, truncated: bool = False) -> Rollout:
    """A rollout whose observation tells time and lane: reward [T, N] and flags [T, N]."""
    reward_TN, ended_TN = torch.tensor(reward), torch.tensor(ended, dtype=torch.bool)
    num_steps, num_lanes = reward_TN.shape
    time, lane = torch.meshgrid(torch.arange(num_steps), torch.arange(num_lanes), indexing="ij")
    obs = torch.stack([time.float(), lane.float(), torch.zeros(num_steps, num_lanes)], -1)
    none = torch.zeros_like(ended_TN)
    flags = (none, ended_TN) if truncated else (ended_TN, none)
    return Rollout(obs, torch.zeros(num_steps, num_lanes, 2), reward_TN, *flags, obs, torch.zeros_like(reward_TN))


@pytest.fixture
def store(make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> TrajectoryStore:
    monkeypatch.setattr(trajectories, "MIN_STEPS", 0)
    return TrajectoryStore(12, make_spec("continuous", num_envs=2), CPU)


def places(windows: Any) -> list[list[tuple[int, int]]]:
    return [[(int(t), int(n)) for t, n, _ in window] for window, weight in zip(windows.obs, windows.weight, strict=True)
            if weight.any()]  # fmt: skip


@pytest.mark.parametrize("truncated", [False, True])
def test_windows_are_the_best_ones_and_never_cross_the_end_of_an_episode(
    store: TrajectoryStore, truncated: bool
) -> None:
    # Guards against: H1, a window of the H-term across the end of an episode.
    reward = [[0.0, 1.0], [9.0, 2.0], [9.0, 3.0], [0.0, 0.0], [4.0, 0.5]]
    ended = [[0, 0], [1, 0], [0, 0], [0, 0], [0, 1]]  # 9 + 9 in lane 0 would cross the end of its first episode
    store.add(lanes(reward, ended, truncated=truncated))
    windows = store.top_windows(3, 2, torch.tensor(1.0))
    assert windows is not None
    assert sorted(places(windows)) == [[(0, 0), (1, 0)], [(1, 1), (2, 1)], [(2, 0), (3, 0)]]
    everything = store.top_windows(8, 2, torch.tensor(1.0))
    assert everything is not None
    found = places(everything)
    assert len(found) == 7 and [(1, 0), (2, 0)] not in found  # of eight starts one crosses an end


def test_windows_are_ranked_by_discounted_return_and_weighed_by_scaled_rewards(store: TrajectoryStore) -> None:
    store.add(lanes([[1.0, 0.0], [0.0, 1.5]], [[0, 0], [0, 0]]))
    windows = store.top_windows(1, 2, torch.tensor(0.5))
    assert windows is not None and places(windows) == [[(0, 0), (1, 0)]]  # 0.5 * 1 beats 0.25 * 1.5
    torch.testing.assert_close(windows.weight, torch.tensor([[0.5, 0.0]]))


def test_a_window_follows_its_lane_across_additions_and_across_the_wrap_of_the_ring(store: TrajectoryStore) -> None:
    # Guards against: H1, a window of the H-term across the end of an episode.
    for step in range(9):  # six rows are kept
        best = 10.0 if step in (5, 6) else 0.0
        obs = torch.tensor([[[float(step), 0.0, 0.0], [float(step), 1.0, 0.0]]])
        store.add(lanes([[best, 0.0]], [[0, 0]])._replace(obs=obs))
    windows = store.top_windows(1, 2, torch.tensor(1.0))
    assert windows is not None and places(windows) == [[(5, 0), (6, 0)]]
    every = store.top_windows(20, 2, torch.tensor(1.0))
    assert every is not None
    # The newest row is never followed by the oldest one.
    assert all(later[0] == earlier[0] + 1 and later[1] == earlier[1] for earlier, later in places(every))


def test_the_store_is_bounded_and_silent_until_it_knows_enough(make_spec: MakeSpec) -> None:
    # Guards against: H2, a trajectory store without bounds, or a term that depends on the units of an action.
    spec = make_spec("continuous", num_envs=2)
    small, large = TrajectoryStore(100, spec, CPU), TrajectoryStore(10_000, spec, CPU)
    for _ in range(30):
        for each in (small, large):
            each.add(lanes([[1.0, 0.0]] * 20, [[0, 0]] * 20))
    assert len(small) == 100 and len(large) == 1200
    assert small.top_windows(2, 4, torch.tensor(0.8)) is not None
    assert large.top_windows(2, 4, torch.tensor(0.8)) is None


def test_rewards_are_scaled_to_the_unit_interval_and_equal_ones_count_fully() -> None:
    valid = torch.tensor([[True], [False]])
    torch.testing.assert_close(
        scale_to_unit(torch.tensor([[1.0, 3.0, 2.0], [9.0, 9.0, 9.0]]), valid)[0], torch.tensor([0.0, 1.0, 0.5])
    )
    assert torch.equal(scale_to_unit(torch.ones(1, 3), valid[:1]), torch.ones(1, 3))


def test_excess_of_a_normal_is_free_of_its_units() -> None:
    """Actions measured in other units, mean and deviation with them: the density changes, the excess does not."""
    # Guards against: H2, a trajectory store without bounds, or a term that depends on the units of an action.
    policy = GaussianPolicy(Leaf((3,)), ActionSpec(dim=2))
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    before = policy.logp_above_entropy(obs, action).detach()
    density = policy.dist(obs).log_prob(action).detach()
    with torch.no_grad():
        policy.net[-1].weight *= 10  # type: ignore[operator]
        policy.net[-1].bias *= 10  # type: ignore[operator]
        policy.log_std += math.log(10)
    torch.testing.assert_close(policy.logp_above_entropy(obs, 10 * action).detach(), before, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(policy.dist(obs).log_prob(10 * action).detach(), density)


@pytest.mark.parametrize("policy_class", [GaussianPolicy, SquashedPolicy, DeterministicPolicy])
def test_excess_of_the_mode_is_half_per_dimension(policy_class: type[Policy]) -> None:
    policy = policy_class(Leaf((3,)), ActionSpec(dim=2), NetSpec(hidden=(4,)))
    obs = torch.randn(5, 3)
    mode, _ = policy.act(obs, ())
    torch.testing.assert_close(policy.logp_above_entropy(obs, mode.detach()), torch.ones(5), atol=1e-4, rtol=1e-4)


def test_excess_of_a_choice_is_its_log_probability_plus_the_entropy() -> None:
    policy = CategoricalPolicy(Leaf((3,)), ActionSpec(choices=(2,)))
    obs, action = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    dist = policy.dist(obs)
    torch.testing.assert_close(policy.logp_above_entropy(obs, action), dist.log_prob(action) + dist.entropy())


@pytest.mark.parametrize("agent", ["ppo", "sac", "td3", "ddpg"])
def test_descending_the_energy_makes_the_good_actions_likelier(make_spec: MakeSpec, agent: str) -> None:
    spec = make_spec("continuous")
    learner = Learner(agent, find_config(agent, h_term=True, h_windows=8, h_length=3, hidden=(16,)), spec, CPU, 0)
    term, policy = learner.agent.h_term, learner.agent.policy
    assert term is not None
    generator = torch.Generator().manual_seed(0)
    term.obs.normal_(generator=generator)
    near = 0.05 * torch.randn(term.action.shape, generator=generator)
    term.action.copy_(mode(policy, term.obs) + near)
    term.weight.fill_(1.0)
    params = [p for p in policy.parameters() if p.requires_grad]
    before = logp(policy, term)
    for _ in range(20):
        grads = torch.autograd.grad(term(policy), params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p -= 1e-4 * g
    assert logp(policy, term) > before


def mode(policy: Policy, obs_LKO: Tensor) -> Tensor:
    action, _ = policy.act(obs_LKO.flatten(0, 1), ())
    return action.detach().unflatten(0, obs_LKO.shape[:2])


def logp(policy: Policy, term: HTerm) -> float:
    """Mean log-density of the windows' first actions, before squashing; later ones may have reached the clamp."""
    obs, action = term.obs[:, 0], term.action[:, 0]
    if isinstance(policy, SquashedPolicy):
        mean, log_std = policy.net(obs).chunk(2, -1)
        return DiagGaussian(mean, log_std).log_prob(action.atanh()).mean().item()
    if isinstance(policy, GaussianPolicy):
        return policy.dist(obs).log_prob(action).mean().item()
    return policy.logp_above_entropy(obs, action).mean().item()  # the deviation is fixed


def find_config(agent: str, **settings: Any) -> Any:
    return find_agent(agent).config(**settings)


TINY: dict[str, Any] = {"hidden": [8], "seed": 3, "num_envs": 2, "max_steps": 160}
REPLAY: dict[str, Any] = {"learning_starts": 20, "batch_size": 8, "buffer_size": 200, "horizon": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"horizon": 20, "batch_size": 16, "num_epochs": 2},
    "sac": REPLAY,
    "td3": REPLAY,
    "ddpg": REPLAY,
}


@pytest.mark.parametrize("agent", list(SETTINGS))
def test_a_weight_of_zero_equals_the_plain_agent_and_a_real_one_does_not(
    run_quietly: Callable[..., RunResult],
    load_commit: Callable[[Path], dict[str, Any]],
    hash_state: Callable[[Any], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    agent: str,
) -> None:
    # The term needs autograd, so do the bits.
    monkeypatch.setattr(learner_module, "import_fast", lambda *_: None)

    # Guards against: H3, a term that changes a run when its weight is zero, or does nothing when it is not.
    def final(name: str, **settings: Any) -> dict[str, Tensor]:
        run_quietly(
            agent, "Pendulum-v1", run_dir=tmp_path / name, eval={"interval": 10**9, "episodes": 1},
            **TINY, **SETTINGS[agent], **settings,
        )  # fmt: skip
        learner = load_commit(tmp_path / name)["learner"]
        modules = learner["agent"]["modules"]
        kept = {key: value for key, value in modules.items() if not key.startswith(("h_term.", "hypers."))}
        return {**kept, **{f"optimizer {key}": value for key, value in learner["agent"]["optimizers"].items()}}

    h_term = {"h_term": True, "h_store": 40, "h_windows": 8}
    plain = hash_state(final("plain"))
    assert hash_state(final("zero", **h_term, h_lambda=0.0)) == plain
    assert hash_state(final("on", **h_term)) != plain


def test_off_means_that_nothing_of_it_is_built(make_spec: MakeSpec) -> None:
    learner = Learner("ppo", PPOConfig(hidden=(4,)), make_spec("continuous"), CPU, 0)
    assert learner.agent.h_term is None and learner.agent.seen_state() == {}
    assert not any(name.startswith("h_term") for name in learner.agent.state_dict())
    defaults = HTermConfig()
    assert (defaults.h_lambda, defaults.h_length, defaults.h_gamma) == (2**-3, 4, 0.8)
    assert HTerm(defaults, make_spec("discrete"), CPU).action.dtype == torch.int64
