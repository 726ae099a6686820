"""What happens between two log lines of a run: fragments, updates and new weights, with everything on one device."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from elegantrl.roles.evaluator import Evaluator
from elegantrl.roles.group import GroupActor
from elegantrl.types import Weights
from tests.accelerator import ACCELERATOR, CPU, Accelerator, Events
from tests.device.cases import GRU, H_TERM, HORIZON, Sights, build_env, build_learner, case_id
from tests.device.listed import LISTED, unlisted

LOOPS = [
    ("ppo", "TensorCartPole", {"target_kl": 1e-6}, ACCELERATOR),
    ("ppo", "Chasing", {}, CPU),
    ("ppo", "TensorCartPole", H_TERM, ACCELERATOR),
    ("ppo", "CartPole-v1", {}, ACCELERATOR),
    ("a2c", "Doors", GRU, ACCELERATOR),
    ("mod_sac", "TensorPendulum", {}, ACCELERATOR),
    ("dqn", Sights, {}, ACCELERATOR),
    ("recurrent_dqn", "TensorCartPole", {}, ACCELERATOR),
    ("mappo", "TensorSkirmish", {}, ACCELERATOR),
    ("qmix", "TensorSkirmish", {}, ACCELERATOR),
    ("matd3", "TensorSpeakerListener", {}, ACCELERATOR),
    ("maddpg", "TensorTag", {"env": {"continuous_actions": True}}, ACCELERATOR),
]
"""Agent, environment, settings, and the device of the environment; the learner is always on the accelerator."""
DOCS = Path(__file__).parents[2] / "docs" / "devices.md"


@cache
def loop(number: int) -> Events:
    """The events of three iterations and an evaluation; episodes end within each fragment."""
    name, env_id, settings, acts_on = LOOPS[number]
    agent = {key: value for key, value in settings.items() if key != "env"}
    arguments = {"max_episode_steps": 4, **settings.get("env", {})}
    with Accelerator() as accelerator:
        env, other = (build_env(env_id, acts_on, **arguments) for _ in range(2))
        learner = build_learner(name, env, ACCELERATOR, agent)
        actor = GroupActor(env, learner.policy_spec(), 0)
        evaluator = Evaluator(other, learner.policy_spec())
        with accelerator.watch() as events:
            for seq in range(3):
                learner.update([actor.sample(learner.weights(), HORIZON, seq)])
            evaluator.score(learner.weights(), 0)
        assert learner.num_updates()
    return events


def test_the_host_waits_at_listed_places_only_and_at_each_of_them() -> None:
    found = set()
    for number, case in enumerate(LOOPS):
        events = loop(number)
        assert not unlisted(events), "-".join(map(case_id, case))
        found |= {(event.kind, event.place) for event in events}
    assert found == set(LISTED)


def test_reads_per_fragment_do_not_grow_with_its_length() -> None:
    """Guards against: a read in each step or each minibatch."""
    counts = []
    for horizon in (4, 8):
        with Accelerator() as accelerator:
            env = build_env("TensorCartPole", ACCELERATOR, max_episode_steps=3)
            learner = build_learner("ppo", env, ACCELERATOR, {"horizon": horizon})
            actor = GroupActor(env, learner.policy_spec(), 0)
            weights: Weights = learner.weights()
            with accelerator.watch() as events:
                learner.update([actor.sample(weights, horizon, 0)])
            counts.append(sum(events.values()))
    assert counts == [4, 4]


def test_the_page_shows_the_list() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (read|upload) \| (.+) \| (.+) \|$", DOCS.read_text(), re.M)
    shown = {(kind, f"elegantrl/{place}"): (often, why) for place, kind, often, why in rows}
    assert shown == {place: tuple(reason) for place, reason in LISTED.items()}
