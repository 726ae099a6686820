"""The Hamiltonian term: its energy, its windows, and that it changes nothing when off."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elegantrl.agents.h_term import PARTS, TRACE, HTerm, HTermConfig, energy, values_explain
from elegantrl.agents.ppo import PPOConfig
from elegantrl.data import trajectories
from elegantrl.data.trajectories import TrajectoryStore, scale_to_unit
from elegantrl.nets.distributions import DiagGaussian
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import CategoricalPolicy, DeterministicPolicy, GaussianPolicy, Policy, SquashedPolicy
from elegantrl.registry import find_agent
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


def test_windows_are_drawn_in_proportion_to_the_advantage_of_their_first_step(store: TrajectoryStore) -> None:
    # Guards against: H1, a window of the H-term across the end of an episode.
    ended = [[0, 0], [1, 0], [0, 0], [0, 0]]
    store.add(lanes([[0.0, 0.0]] * 4, ended))
    # Of the starts in rows 0 to 2 that at (1, 0) would cross an end and that at (2, 0) has a negative advantage.
    advantage = torch.tensor([[1.0, 0.0], [50.0, 2.0], [-7.0, 5.0], [9.0, 9.0]])
    windows = store.draw_windows(advantage, 8, 2, torch.tensor(0.5))
    assert windows is not None
    # The sums are 1, 1, 1, 3, 3, 8: half a step from each end, one window in (0, 1], two in (1, 3], five in (3, 8].
    assert places(windows) == [[(0, 0), (1, 0)]] + 2 * [[(1, 1), (2, 1)]] + 5 * [[(2, 1), (3, 1)]]
    torch.testing.assert_close(windows.weight, torch.tensor([[0.5, 0.25]]).expand(8, 2))
    nothing = store.draw_windows(-advantage.abs(), 8, 2, torch.tensor(0.5))
    assert nothing is not None and not nothing.weight.any()
    assert store.draw_windows(advantage, 8, 5, torch.tensor(0.5)) is None


def test_advantages_use_present_values_and_the_true_successors(make_spec: MakeSpec) -> None:
    spec = make_spec("continuous", num_envs=1)
    term = HTerm(HTermConfig(h_store=3), spec, CPU)
    rollout = lanes([[1.0], [2.0], [4.0]], [[0], [1], [0]], truncated=True)
    successor = rollout.obs + torch.tensor([1.0, 0.0, 0.0])
    successor[1, 0, 0] = 10.0  # what was seen last in the episode that the time limit cut
    term.trajectories.add(rollout._replace(next_obs=successor))
    found, value = term.advantages(lambda obs: 10 * obs[:, 0], torch.tensor(0.5), lambda reward: 2 * reward)
    torch.testing.assert_close(value, torch.tensor([[0.0], [10.0], [20.0]]))
    # Values 0, 10, 20; of the successors 10, 100, 30. Errors: 2 + 5 - 0, 4 + 50 - 10, 8 + 15 - 20.
    torch.testing.assert_close(found, torch.tensor([[7 + 0.5 * TRACE * 44], [44.0], [3.0]]))


@pytest.mark.parametrize(
    ("returns", "advantage", "explained"),
    [
        ([-2.0, 2.0, 0.0, 0.0], [-1.0, 1.0, 1.0, -1.0], True),  # variances 2 and 1: half of it is explained
        ([-2.0, 2.0, 0.0, 0.0], [-1.1, 1.1, 1.0, -1.0], False),  # and here a little less
        ([-2.0, 2.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0], True),  # their mean does not count
        ([5.0, 5.0, 5.0, 5.0], [-0.1, 0.1, 0.0, 0.0], False),  # nothing varies but the values: these are errors
    ],
)
def test_values_explain_returns_if_advantages_have_at_most_half_of_their_variance(
    returns: list[float], advantage: list[float], explained: bool
) -> None:
    assert bool(values_explain(torch.tensor(returns), torch.tensor(advantage))) is explained


def test_no_window_is_drawn_while_values_explain_little(make_spec: MakeSpec) -> None:
    rollout = lanes([[0.0], [0.0], [8.0], [0.0]], [[0], [0], [1], [0]])
    hypers = SimpleNamespace(gamma=torch.tensor(1.0), h_gamma=torch.tensor(0.5))

    def drawn(values: list[float]) -> Tensor:
        """Weights of the windows if these are the values by time; that after the last step is that of it."""
        term = HTerm(HTermConfig(h_store=4, h_length=1, h_windows=1), make_spec("continuous", num_envs=1), CPU)
        term.see(rollout, lambda obs: torch.tensor(values)[obs[:, 0].long()], hypers, lambda reward: reward)
        return term.windows.weight

    # Returns 7.805, 7.9, 8, 0 with a variance of 11.7, advantages 1.805, 1.9, 2, 0 with 0.68.
    assert torch.equal(drawn([6.0, 6.0, 6.0, 0.0]), torch.full((PARTS, 1), 0.5))
    assert not drawn([0.0, 0.0, 0.0, 6.0]).any()  # returns 7.22, 7.6, 8, 6: less varies than in the advantages
    assert not drawn([0.0, 0.0, 0.0, 0.0]).any()  # values without any difference explain nothing


@pytest.mark.parametrize(
    ("ratio", "own", "added"),
    [
        # The running average is a hundredth of the usual gradient (3, 4): its length is 0.05.
        (10.0, [0.0, 3.0], [0.0, 0.5]),  # ten times as long as the average, which is less than 1/4 of 3
        (10.0, [0.0, 0.4], [0.0, 0.1]),  # short enough: a quarter of it
        (10.0, [-4.0, 2.0], [-0.4, 0.3]),  # -12 + 8 < 0: -4 + 12/25, 2 + 16/25 remain, of length 4.4, and 0.5 of that
        (10.0, [-3.0, -4.0], [0.0, 0.0]),  # all of it is against the usual one
        (1.0, [0.0, 3.0], [0.0, 0.05]),
        (0.0, [-4.0, 2.0], [-1.0, 0.5]),  # as documented
        (10.0, [0.0, 0.0], [0.0, 0.0]),  # no windows yet
    ],
)
def test_the_gradient_is_limited_and_loses_what_is_against_the_usual_one(
    make_spec: MakeSpec, ratio: float, own: list[float], added: list[float]
) -> None:
    term = HTerm(HTermConfig(h_ratio=ratio), make_spec("continuous"), CPU)
    term.build_direction(nn.Linear(1, 1))  # two parameters
    grad = torch.tensor([3.0, 4.0, 100.0])  # and one that is not the policy's
    share = term.add(torch.tensor([*own, 0.0]), grad, torch.tensor(0.25))
    torch.testing.assert_close(grad, torch.tensor([3 + added[0], 4 + added[1], 100.0]))
    assert share.item() == pytest.approx(math.hypot(*added) / 5)


def test_what_the_usual_loss_asked_for_lately_decides(make_spec: MakeSpec) -> None:
    """A single minibatch that agrees does not outweigh those before it that did not, nor does its length count."""
    term = HTerm(HTermConfig(h_ratio=2.0), make_spec("continuous"), CPU)
    term.build_direction(nn.Linear(1, 1))
    for _ in range(3):
        term.add(torch.zeros(2), torch.tensor([-2.0, 0.0]), torch.tensor(1.0))
    grad = torch.tensor([5.0, 0.0])
    term.add(torch.tensor([1.0, 0.0]), grad, torch.tensor(1.0))  # the average is -0.0588 + 0.05
    torch.testing.assert_close(grad, torch.tensor([5.0, 0.0]))
    term.add(torch.tensor([1.0, 0.0]), grad, torch.tensor(1.0))  # and now 0.99 * -0.0094 + 0.05
    average = 0.99 * (0.99 * -0.059402 + 0.05) + 0.05  # that before: -2 * (1 - 0.99^3)
    torch.testing.assert_close(grad, torch.tensor([5 + 2 * average, 0.0]), atol=1e-4, rtol=0)


def test_gradient_steps_take_turns_with_the_windows(make_spec: MakeSpec) -> None:
    term = HTerm(HTermConfig(h_windows=2, h_length=1), make_spec("continuous"), CPU)
    term.windows = term.windows._replace(weight=torch.arange(2.0 * PARTS).unsqueeze(-1))
    turns = [term.next_windows().weight.flatten().tolist() for _ in range(PARTS + 1)]
    assert turns[0] == turns[PARTS] == [0, PARTS] and turns[3] == [3, PARTS + 3]


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
    policy = Learner(agent, find_config(agent, hidden=(16,)), spec, CPU, 0).agent.policy
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(8, 3, spec.obs_dim, generator=generator)
    action = mode(policy, obs) + 0.05 * torch.randn(8, 3, spec.action.num_outputs, generator=generator)
    params = [p for p in policy.parameters() if p.requires_grad]
    before = logp(policy, obs, action)
    for _ in range(20):
        grads = torch.autograd.grad(energy(policy.logp_above_entropy(obs, action), torch.ones(8, 3)), params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p -= 1e-4 * g
    assert logp(policy, obs, action) > before


def mode(policy: Policy, obs_LKO: Tensor) -> Tensor:
    action, _ = policy.act(obs_LKO.flatten(0, 1), ())
    return action.detach().unflatten(0, obs_LKO.shape[:2])


def logp(policy: Policy, obs_LKO: Tensor, action_LKA: Tensor) -> float:
    """Mean log-density of the windows' first actions, before squashing; later ones may have reached the clamp."""
    obs, action = obs_LKO[:, 0], action_LKA[:, 0]
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
    agent: str,
) -> None:
    # Guards against: H3, a term that changes a run when its weight is zero, or does nothing when it is not.
    def final(name: str, **settings: Any) -> dict[str, Tensor]:
        run_quietly(
            agent, "Pendulum-v1", run_dir=tmp_path / name, eval={"interval": 10**9, "episodes": 1},
            **TINY, **SETTINGS[agent], **settings,
        )  # fmt: skip
        learner = load_commit(tmp_path / name)["learner"]
        modules = learner["agent"]["modules"]
        kept = {key: value for key, value in modules.items() if not key.startswith("hypers.")}
        return {**kept, **{f"optimizer {key}": value for key, value in learner["agent"]["optimizers"].items()}}

    h_term = {"h_term": True, "h_store": 40, "h_windows": 8}
    plain = hash_state(final("plain"))
    assert hash_state(final("zero", **h_term, h_lambda=0.0)) == plain
    # Untrained values are near 0 and the rewards of this task negative: nothing exceeds what is expected yet.
    assert hash_state(final("on", **h_term)) == plain
    assert hash_state(final("documented", **h_term, h_ratio=0.0, h_select="reward")) != plain


def test_what_exceeds_the_values_has_a_limited_share_in_the_gradient(make_spec: MakeSpec) -> None:
    config = PPOConfig(hidden=(4,), h_term=True, h_store=40, h_windows=8, h_ratio=5.0, num_epochs=1)
    agent = Learner("ppo", config, make_spec("continuous", num_envs=2), CPU, 0).agent
    # Values of 30 and 0 in turn, and every reward is 1 more than they expect: they explain most of the returns.
    agent.state_values = lambda obs: 30 * (obs[..., 0] % 2)  # type: ignore[method-assign, assignment]
    rollout = lanes([[1 - 0.99 * 30.0] * 2, [31.0] * 2] * 10, [[0, 0]] * 20)
    agent.see(rollout)
    # The running average is a hundredth of this only gradient.
    assert agent.update(rollout).metrics["h_term/share"].item() == pytest.approx(0.05)
    agent.see(rollout._replace(reward=rollout.reward - 1000))
    assert agent.update(rollout).metrics["h_term/share"].item() == 0


def test_off_means_that_nothing_of_it_is_built(make_spec: MakeSpec) -> None:
    learner = Learner("ppo", PPOConfig(hidden=(4,)), make_spec("continuous"), CPU, 0)
    assert learner.agent.h_term is None and learner.agent.seen_state() == {}
    defaults = HTermConfig()
    assert (defaults.h_lambda, defaults.h_length, defaults.h_gamma) == (2**-3, 4, 0.8)
    assert HTerm(defaults, make_spec("discrete"), CPU).windows.action.dtype == torch.int64
