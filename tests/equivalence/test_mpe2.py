"""The tensor worlds of particles equal ``mpe2`` step by step, from the same places and with the same actions.

Axes: T steps, N lanes, G agents, E entities, D dimensions.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elegantrl.envs import make_env
from elegantrl.envs.tensor import SpeakerListenerVecEnv, SpreadVecEnv, TagVecEnv
from elegantrl.envs.tensor.particles import ParticleVecEnv, rows
from elegantrl.types import mask_of, seen_part

pytest.importorskip("mpe2")

LANES = 4


def reference_of(scenario: str, **settings: Any) -> Any:
    return importlib.import_module(f"mpe2.{scenario}").parallel_env(**settings)


def columns_of(env: ParticleVecEnv) -> Tensor:
    return env.state_dict()["state"].t().contiguous()


def crowd(env: ParticleVecEnv) -> None:
    """Bring everything together, so that most bodies touch each other and the obstacles from the first step on."""
    columns = columns_of(env)
    env.positions(columns).mul_(torch.linspace(0.1, 1, LANES))
    env.load_state_dict({**env.state_dict(), "state": rows(columns)})


def follow(reference: Any, env: ParticleVecEnv, lane: int) -> None:
    """Put the entities of ``reference`` where those of ``lane`` are; a speaker has no body here."""
    reference.reset(seed=0)
    world, columns = reference.unwrapped.world, columns_of(env)
    place, velocity = env.positions(columns)[..., lane].T.double(), env.velocities(columns)[..., lane].T.double()
    bodies = [agent for agent in world.agents if agent.movable]
    for entity, (x, y) in zip([*bodies, *world.landmarks], place.tolist(), strict=True):
        entity.state.p_pos = np.array([x, y])
    for body, (x, y) in zip(bodies, velocity.tolist(), strict=True):
        body.state.p_vel = np.array([x, y])
    if isinstance(env, SpeakerListenerVecEnv):
        goal = int(env.goal(env.state_dict()["state"])[lane])
        world.agents[0].goal_b = world.landmarks[goal]


def native(reference: Any, action: Tensor) -> dict[str, Any]:
    """Actions [G, ...] in the units of mpe2."""
    taken = {}
    for agent, own in zip(reference.agents, action, strict=True):
        space = reference.action_space(agent)
        own = own.numpy()
        taken[agent] = int(own) if own.shape == () else (own[: space.shape[0]] + 1) / 2
    return taken


def drawn(env: ParticleVecEnv, num_steps: int, seed: int) -> Tensor:
    """Random actions [T, N, G, ...] that the masks allow."""
    generator = torch.Generator().manual_seed(seed)
    actions = env.spec.action.random((num_steps, LANES, *env.spec.team), generator)
    if isinstance(env, SpeakerListenerVecEnv) and env.action.choices:
        actions[:, :, 0] %= 3
    return actions


def assert_equal_episode(env: ParticleVecEnv, scenario: str, crowded: bool, seed: int = 0, **settings: Any) -> float:
    """Play one episode in all lanes and in as many copies of ``mpe2``; the share of steps with a contact."""
    env.reset(seed)
    if crowded:
        crowd(env)
    references = [reference_of(scenario, continuous_actions=not env.action.choices, **settings) for _ in range(LANES)]
    for lane, reference in enumerate(references):
        follow(reference, env, lane)
    contacts = 0
    for index, action in enumerate(drawn(env, 25, seed)):
        step = env.step(action)
        for lane, reference in enumerate(references):
            names = reference.possible_agents
            expected, reward, terminated, truncated, _ = reference.step(native(reference, action[lane]))
            for agent, name in enumerate(names):
                seen = seen_part(step.next_obs)[lane, agent]
                size = len(expected[name])
                # Contacts are stiff: rounding errors of float32 grow with each of them.
                np.testing.assert_allclose(seen[:size], expected[name], atol=1e-4, rtol=1e-4)
                assert (seen[size:] == 0).all(), "padded"
                assert step.reward[lane, agent].item() == pytest.approx(reward[name], abs=1e-3)
            assert step.truncated[lane].item() == all(truncated.values()) == (index == 24)
            assert not step.terminated[lane] and not any(terminated.values())
            contacts += bool(touching(reference.unwrapped.world))
    return contacts / (25 * LANES)


def touching(world: Any) -> bool:
    bodies = [entity for entity in world.entities if entity.collide]
    return any(
        np.linalg.norm(a.state.p_pos - b.state.p_pos) < a.size + b.size
        for i, a in enumerate(bodies)
        for b in bodies[i + 1 :]
        if a.movable or b.movable
    )


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(("num_agents", "local_ratio"), [(3, 0.5), (5, 0.2)])
def test_spread_equals_mpe2(num_agents: int, local_ratio: float, continuous: bool) -> None:
    env = SpreadVecEnv(LANES, num_agents=num_agents, local_ratio=local_ratio, continuous_actions=continuous)
    contacts = assert_equal_episode(env, "simple_spread_v3", True, N=num_agents, local_ratio=local_ratio)
    assert contacts > 0.05
    assert_equal_episode(env, "simple_spread_v3", False, seed=1, N=num_agents, local_ratio=local_ratio)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("sizes", [(1, 3, 2), (2, 3, 0), (2, 2, 3)])
def test_tag_equals_mpe2(sizes: tuple[int, int, int], continuous: bool) -> None:
    settings = dict(zip(("num_good", "num_adversaries", "num_obstacles"), sizes, strict=True))
    env = TagVecEnv(LANES, prey="learned", continuous_actions=continuous, **settings)
    reference = reference_of("simple_tag_v3", **settings)
    assert env.spec.agent_names == tuple(reference.possible_agents)
    assert assert_equal_episode(env, "simple_tag_v3", True, **settings) > 0.05
    assert_equal_episode(env, "simple_tag_v3", False, seed=1, **settings)


def test_tag_penalises_prey_beyond_the_edge_as_mpe2_does() -> None:
    env = TagVecEnv(LANES, prey="learned")
    env.reset(0)
    columns = columns_of(env)
    env.positions(columns)[0, 3] = torch.tensor([0.5, 0.95, -1.2, 80.0])
    env.load_state_dict({**env.state_dict(), "state": rows(columns)})
    penalty = env.step(torch.zeros(LANES, 4, dtype=torch.int64)).reward[:, 3]
    env.load_state_dict({**env.state_dict(), "state": rows(columns)})
    for lane in range(LANES):
        reference = reference_of("simple_tag_v3")
        follow(reference, env, lane)
        reward = reference.step(dict.fromkeys(reference.agents, 0))[1]["agent_0"]
        assert penalty[lane].item() == pytest.approx(reward, abs=1e-3)
    assert len({round(value, 3) for value in penalty.tolist()}) == 4


@pytest.mark.parametrize("continuous", [False, True])
def test_speaker_and_listener_equal_mpe2(continuous: bool) -> None:
    env = SpeakerListenerVecEnv(LANES, continuous_actions=continuous)
    reference = reference_of("simple_speaker_listener_v4", continuous_actions=continuous)
    assert env.spec.agent_names == tuple(reference.possible_agents)
    spaces = [reference.action_space(name) for name in reference.possible_agents]
    if continuous:
        assert env.spec.action.sizes == tuple(space.shape[0] for space in spaces)
    else:
        assert mask_of(env.reset(0))[0].sum(1).tolist() == [space.n for space in spaces]  # type: ignore[index]
    for seed in range(2):
        assert_equal_episode(env, "simple_speaker_listener_v4", False, seed)


def test_first_states_are_distributed_as_in_mpe2() -> None:
    """The mean square of a uniform number in [-r, r] is r^2 / 3."""
    env = make_env("TensorTag", 4000)
    env.reset(0)
    columns = env.state_dict()["state"].t().contiguous()
    place = env.positions(columns)  # type: ignore[attr-defined]
    assert place.abs().amax((0, 2)).tolist() == pytest.approx([1.0] * 4 + [0.9] * 2, abs=1e-3)
    assert place.square().mean((0, 2)).tolist() == pytest.approx([1 / 3] * 4 + [0.27] * 2, abs=0.015)
    assert (env.velocities(columns) == 0).all()  # type: ignore[attr-defined]
