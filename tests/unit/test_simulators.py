"""Fake simulators behind the contract: each transition is computed again from the task's formulas, and neither buffers
that are overwritten nor a NaN reaches an agent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

from elegantrl import tree
from elegantrl.agents.base import AgentConfig
from elegantrl.agents.ppo import PPOConfig
from elegantrl.agents.sac import SACConfig
from elegantrl.agents.team.mappo import MAPPOConfig
from elegantrl.data.memory import Replay
from elegantrl.envs import VecEnv, make_env
from elegantrl.envs.isaac import IsaacLabVecEnv, is_simulator
from elegantrl.errors import ConfigError, SpecError
from elegantrl.roles.group import GroupActor
from elegantrl.roles.learner import Learner
from elegantrl.testing import (
    FakeIsaacLabEnv,
    FakeIsaacLabTeam,
    FakeLeggedRobot,
    FakeMjlabEnv,
    FakeRslVecEnv,
    FakeVecTask,
    rail,
)
from elegantrl.types import Leaf, Obs, Rollout

LANES = 6
NONE, ALL, HALF = "none", "all", "half"
"""The lanes of which the last observations are known; HALF: every second one, and only what the policy sees."""

FAKES: dict[str, tuple[Callable[..., VecEnv], str, bool]] = {
    "Isaac Gym": (lambda: make_env(FakeVecTask, LANES, num_states=4), ALL, True),
    "Isaac Gym same-step": (lambda: make_env(FakeVecTask, LANES, num_states=4, same_step=True), NONE, True),
    "legged_gym": (lambda: make_env(FakeLeggedRobot, LANES), NONE, True),
    "RSL-RL": (lambda: make_env(FakeRslVecEnv, LANES), NONE, True),
    "Isaac Lab": (lambda: make_env(FakeIsaacLabEnv, LANES), NONE, False),
    "Isaac Lab tensor": (lambda: make_env(FakeIsaacLabEnv, LANES, final_obs="tensor"), HALF, False),
    "Isaac Lab groups": (lambda: make_env(FakeIsaacLabEnv, LANES, final_obs="groups"), ALL, False),
    "Isaac Lab flags": (lambda: make_env(FakeIsaacLabEnv, LANES, final_obs="flags"), ALL, False),
    "Isaac Lab array": (lambda: make_env(FakeIsaacLabEnv, LANES, final_obs="array"), ALL, False),
    "mjlab": (lambda: make_env(FakeMjlabEnv, LANES), ALL, False),
}
"""Environment, which last observations are known, and whether an end in the last step counts as a truncation."""


def assert_formulas(r: Rollout, known: str, late_wins: bool) -> int:
    """Compute steps [T, N] again; returns the number of truncations."""
    lanes = torch.arange(LANES).expand(r.terminated.shape)
    for obs in (r.obs, r.next_obs):
        assert all(bool(x.isfinite().all()) for x in tree.leaves(obs))
        if known != HALF:
            assert torch.equal(obs.seen, obs.state[..., [0, 1, 3]]), "both groups are of the same moment"
    flat: Rollout = tree.flatten(r._replace(carry=(), kept=()), 0, 1)
    before, force = flat.obs.state, flat.action[:, 0].clamp(-1, 1)
    after = rail.advance(before, force)
    ended, late = rail.has_ended(after), rail.is_late(after)
    assert torch.equal(flat.reward, rail.reward_of(after, force))
    assert torch.equal(flat.truncated, late if late_wins else late & ~ended)
    assert torch.equal(flat.terminated, (ended | late) & ~flat.truncated)
    done = (ended | late).unsqueeze(1)
    is_known = {NONE: lanes < 0, ALL: lanes >= 0, HALF: lanes % 2 == 0}[known].reshape(-1, 1)
    seen = torch.where(~done | is_known, rail.seen_of(after), rail.seen_of(before))
    assert torch.equal(flat.next_obs.seen, seen)
    state = torch.where(done & (~is_known if known != HALF else done), before, after)
    assert torch.equal(flat.next_obs.state, state)
    over = done.view(r.terminated.shape)[:-1]
    assert torch.equal(r.obs.state[1:][~over], r.next_obs.state[:-1][~over]), "where no episode ended it goes on"
    first = r.obs.state[1:][over]
    assert (first[:, 3] <= 1).all() and (first[:, 0].abs() < 1).all(), "a new episode begins"
    return int(flat.truncated.sum())


@pytest.mark.parametrize("agent", ["ppo", "sac"])
@pytest.mark.parametrize("name", FAKES)
def test_what_agents_learn_from_equals_the_formulas(name: str, agent: str) -> None:
    make, known, late_wins = FAKES[name]
    env = make()
    config: AgentConfig = PPOConfig(hidden=(16,), horizon=24, batch_size=64, num_epochs=2, normalize_obs=True)
    if agent == "sac":
        config = SACConfig(hidden=(16,), horizon=24, batch_size=32, learning_starts=100, updates_per_step=0.1)
    learner = Learner(agent, config, env.spec, env.device, seed=0)
    actor = GroupActor(env, learner.policy_spec(), seed=0, on_nonfinite="stop")
    num_cut = 0
    for seq in range(3):
        fragment = actor.sample(learner.weights(), config.horizon, seq)
        assert not fragment.faults
        num_cut += assert_formulas(fragment.rollout, known, late_wins)
        learner.learn([fragment])
    assert num_cut > 3, "some episodes ran out of time"
    assert learner.num_updates() > 1
    assert all(bool(x.isfinite().all()) for x in learner.agent.state_dict().values())
    if isinstance(learner.memory, Replay):
        ring = learner.memory.ring
        rows = ring.filled_rows()
        kept = [tree.rows(x, rows) for x in (ring.obs, ring.action, ring.reward, ring.terminated, ring.truncated)]
        assert_formulas(Rollout(*kept, tree.rows(ring.next_obs, rows)), known, late_wins)


def test_a_lost_step_of_isaac_gym_never_becomes_data() -> None:
    """The task itself spends a step on each reset; behind the contract no step is spent."""
    raw = FakeVecTask(LANES)
    raw.reset_idx(torch.arange(LANES))
    torch.manual_seed(0)
    lost = 0
    for _ in range(40):
        was_marked = raw.reset_buf.clone() != 0
        raw.step(torch.ones(LANES, 1))
        lost += int((raw.progress_buf[was_marked] == 0).sum())
    assert lost > 20
    env = make_env(FakeVecTask, LANES, num_states=4)
    obs = env.reset(0)
    for _ in range(40):
        step = env.step(torch.ones(LANES, 1))
        assert torch.equal(step.next_obs.state, rail.advance(obs.state, torch.ones(LANES)))
        obs = step.obs


def test_a_time_limit_that_is_part_of_the_task_is_an_end() -> None:
    env = make_env(FakeIsaacLabEnv, LANES, is_finite_horizon=True)
    env.reset(0)
    steps = [env.step(torch.zeros(LANES, 1)) for _ in range(rail.LIMIT)]
    assert not any(step.truncated.any() for step in steps)
    assert torch.stack([step.terminated for step in steps]).any(0).all()


def test_lanes_that_gave_a_nan_are_reset_where_the_simulator_can_do_so() -> None:
    for make in (lambda: make_env(FakeVecTask, 3, num_states=4), lambda: make_env(FakeMjlabEnv, 3)):
        env = make()
        env.reset(0)
        before = env.step(torch.zeros(3, 1)).obs.state
        after = env.reset_lanes(torch.tensor([False, True, False]))
        assert after.state[:, 3].tolist() == [1, 0, 1] and torch.equal(after.state[[0, 2]], before[[0, 2]])
        assert env.step(torch.zeros(3, 1)).obs.state[:, 3].tolist() == [2, 1, 2]
    env = make_env(FakeIsaacLabEnv, 3)
    env.reset(0)
    assert env.reset_lanes(torch.tensor([False, True, False])) is None


def test_a_team_pushes_with_actions_in_its_own_units() -> None:
    env = make_env(FakeIsaacLabTeam, 3)
    assert env.spec.obs == Obs(Leaf((2, 3)), state=Leaf((4,)))  # type: ignore[arg-type]
    assert env.spec.agent_names == ("left", "right") and env.spec.action.sizes == (1, 2)
    obs = env.reset(0)
    assert torch.equal(obs.seen[:, 0], torch.cat([obs.state[:, :2], torch.zeros(3, 1)], 1)), "zeros fill up"
    action = torch.tensor([[[0.5, 9.0], [1.0, -0.4]]]).expand(3, 2, 2)
    for _ in range(20):
        step = env.step(action)
        force = torch.full((3,), 0.5 + 0.5 - 0.2)  # right has forces between -0.5 and 0.5
        after = rail.advance(obs.state, force)
        assert torch.allclose(step.reward.sum(1), rail.reward_of(after, force))
        done = rail.has_ended(after) | rail.is_late(after)
        assert torch.equal(step.terminated | step.truncated, done)
        torch.testing.assert_close(step.next_obs.state, torch.where(done.unsqueeze(1), obs.state, after))
        obs = step.obs
    plain = make_env(FakeIsaacLabTeam, 3, state=False)
    assert plain.spec.obs == Leaf((2, 3)) and plain.reset(0).shape == (3, 2, 3)


def test_a_team_learns_from_no_buffer_and_no_nan() -> None:
    env = make_env(FakeIsaacLabTeam, LANES)
    config = MAPPOConfig(hidden=(16,), horizon=24, batch_size=48, num_epochs=2)
    learner = Learner("mappo", config, env.spec, env.device, seed=0)
    actor = GroupActor(env, learner.policy_spec(), seed=0, on_nonfinite="stop")
    num_cut = 0
    for seq in range(3):
        fragment = actor.sample(learner.weights(), config.horizon, seq)
        rollout = fragment.rollout
        done = (rollout.terminated | rollout.truncated)[:-1]
        assert not fragment.faults
        assert all(bool(x.isfinite().all()) for x in tree.leaves((rollout.obs, rollout.next_obs, rollout.reward)))
        assert torch.equal(rollout.next_obs.state[:-1][~done], rollout.obs.state[1:][~done])
        assert torch.equal(rollout.next_obs.state[:-1][done], rollout.obs.state[:-1][done]), (
            "the last one that is known"
        )
        num_cut += int(rollout.truncated.sum())
        learner.learn([fragment])
    assert num_cut > 3 and learner.num_updates() > 1
    assert all(bool(x.isfinite().all()) for x in learner.agent.state_dict().values())


class UnlikeAgents(FakeIsaacLabTeam):
    """``left`` pushes or not; ``right`` has three forces."""

    def __init__(self, num_envs: int = 4, device: str = "cpu"):
        super().__init__(num_envs, device, state=False)
        self.action_spaces = {"left": gym.spaces.Discrete(2), "right": gym.spaces.Discrete(3)}  # type: ignore[dict-item]
        self.taken: dict[str, Tensor] = {}

    def step(self, actions: dict[str, Tensor]) -> Any:
        self.taken = actions
        return super().step({agent: x.float() - 0.5 for agent, x in actions.items()})


def test_agents_with_fewer_options_have_masks() -> None:
    env = make_env(UnlikeAgents, 2)
    obs = env.reset(0)
    assert obs.mask.tolist() == [[[True, True, False], [True, True, True]]] * 2
    env.step(torch.tensor([[1, 2], [0, 1]]))
    taken = env.env.taken  # type: ignore[attr-defined]
    assert taken["left"].tolist() == [[1], [0]] and taken["right"].tolist() == [[2], [1]]


def make_lab(num_envs: int, device: str = "cpu") -> FakeIsaacLabEnv:
    return FakeIsaacLabEnv(num_envs, device)


class Cfg(SimpleNamespace):
    """What Isaac Lab registers with an id."""

    def __init__(self) -> None:
        super().__init__(scene=SimpleNamespace(num_envs=1), sim=SimpleNamespace(device="?"), final_obs="none")


class Configured(FakeIsaacLabEnv):
    def __init__(self, cfg: Cfg, render_mode: str | None = None, **kwargs: Any):
        super().__init__(cfg.scene.num_envs, cfg.sim.device, final_obs=cfg.final_obs)
        assert kwargs == {"env_cfg_entry_point": f"{__name__}:Cfg"}


@pytest.fixture
def isaac_lab_id() -> Any:
    env_id = "Isaac-Fake-v0"
    gym.register(id=env_id, entry_point=Configured, kwargs={"env_cfg_entry_point": f"{__name__}:Cfg"})
    yield env_id
    del gym.registry[env_id]


def test_simulators_are_found_as_instance_class_function_path_and_id(isaac_lab_id: str) -> None:
    for source in (
        FakeIsaacLabEnv(5),
        gym.wrappers.OrderEnforcing(FakeIsaacLabEnv(5)),
        FakeIsaacLabEnv,
        make_lab,
        f"{__name__}:make_lab",
        "elegantrl.testing:FakeIsaacLabEnv",
        isaac_lab_id,
    ):
        env = make_env(source, 5)
        assert isinstance(env, IsaacLabVecEnv) and env.spec.num_envs == 5
        assert env.spec.obs == Obs(Leaf((3,)), state=Leaf((4,)))  # type: ignore[arg-type]
        assert env.spec.max_episode_steps == rail.LIMIT
    assert make_env(isaac_lab_id, 2, final_obs="groups").env.unwrapped.form == "groups"  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match=r"'Isaac-Fake-v0': its configuration has no field 'scene.gravity'; it has \["
    ):
        make_env(isaac_lab_id, 2, **{"scene.gravity": 1})
    with pytest.raises(ConfigError, match="comes with num_envs=5, but num_envs=3 was asked for"):
        make_env(FakeIsaacLabEnv(5), 3)
    assert not is_simulator(FakeIsaacLabEnv) and not is_simulator(gym.make("CartPole-v1"))


def test_a_missing_package_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^environment 'mjlab:Some-Task' needs mjlab: pip install 'elegantrl\[mjlab\]'"
    ):
        make_env("mjlab:Some-Task", 2)


class Silent(FakeVecTask):
    """An early version: it does not tell time limits from ends."""

    def step(self, actions: Tensor) -> Any:
        obs, reward, reset, _ = super().step(actions)
        return obs, reward, reset, {}


def test_a_task_that_sends_no_time_limits_has_them_counted() -> None:
    for same_step in (False, True):
        env = make_env(Silent, LANES, num_states=4, same_step=same_step)
        obs = env.reset(0)
        num_cut = 0
        for _ in range(40):
            step = env.step(torch.zeros(LANES, 1))
            after = rail.advance(obs.state, torch.zeros(LANES))
            assert torch.equal(step.truncated, rail.is_late(after))
            assert torch.equal(step.terminated, rail.has_ended(after) & ~rail.is_late(after))
            obs, num_cut = step.obs, num_cut + int(step.truncated.sum())
        assert num_cut > 5


class Hand(FakeVecTask):
    """Resets its goals with the lanes, as tasks of hands do."""

    def reset_idx(self, env_ids: Tensor, goal_env_ids: Tensor) -> None:  # type: ignore[override]
        assert torch.equal(env_ids, goal_env_ids)
        super().reset_idx(env_ids)

    def post_physics_step(self) -> None:
        self.progress_buf += 1
        self.compute_observations()
        self.compute_reward()


class Blind(FakeVecTask):
    compute_observations = property()  # type: ignore[assignment]


def test_tasks_with_goals_and_tasks_without_observations() -> None:
    env = make_env(Hand, 3, num_states=4)
    env.reset(0)
    steps = [env.step(torch.ones(3, 1)) for _ in range(30)]
    assert sum(int((step.terminated | step.truncated).sum()) for step in steps) > 5
    with pytest.raises(SpecError, match="'Blind': the task has no method compute_observations"):
        make_env(Blind, 3)


def test_buffers_stay_writable_for_callers_of_both_kinds() -> None:
    env = make_env(FakeLeggedRobot, 3)
    with torch.inference_mode():
        env.reset(0)
        env.step(torch.zeros(3, 1))
    env.step(torch.zeros(3, 1))
    with torch.inference_mode():
        env.step(torch.zeros(3, 1))


def test_a_step_with_too_many_values_is_refused() -> None:
    class Wrong(FakeRslVecEnv):
        def step(self, actions: Tensor) -> Any:
            return (*super().step(actions), 1, 2)

    env = make_env(FakeRslVecEnv, 3)
    env.reset(0)
    env.env = Wrong(3)  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="step returned 6 values, expected observations, rewards, dones and extras"):
        env.step(torch.zeros(3, 1))


def test_rewards_of_another_shape_are_refused() -> None:
    class Wide(FakeIsaacLabEnv):
        def step(self, action: Tensor) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, reward.unsqueeze(1), *rest

    env = make_env(Wide, 3)
    env.reset(0)
    with pytest.raises(
        SpecError, match=r"'Wide': step returned rewards of shape \(3, 1\) and flags of shape \(3,\), exp"
    ):
        env.step(torch.zeros(3, 1))
