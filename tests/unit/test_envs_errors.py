"""Each mistake gives one sentence that names the thing, the value and the way out."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from elegantrl import tree
from elegantrl.envs import check_env, env_names, make_env, register_env
from elegantrl.envs.make import _factories
from elegantrl.errors import CheckpointError, ConfigError, ElegantRLError, SpecError


def message_of(call: Callable[[], Any], kind: type[ElegantRLError] = SpecError) -> str:
    """The one line that a user sees; a warning on the way to it would be a second one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kind) as caught:
            call()
    message = str(caught.value)
    assert "\n" not in message and "\x1b" not in message
    return message


PACKAGED = {"atari", "minatar", "minigrid", "marl"}


class Stub(gym.Env[Any, Any]):
    """An environment whose spaces and first observation are given."""

    def __init__(self, obs: Any = None, observation_space: Any = None, action_space: Any = None):
        self.observation_space = observation_space or gym.spaces.Box(-1, 1, (2,))
        self.action_space = action_space or gym.spaces.Discrete(2)
        self.obs = np.zeros(2, dtype=np.float32) if obs is None else obs
        self.taken: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.taken = action
        return self.obs, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("CartPol-v1", ["'CartPol-v1'", "did you mean", "'CartPole-v1'"]),
        ("tensorcartpole", ["unknown", "'TensorCartPole'"]),
        ("Qzx", ["unknown environment 'Qzx'", "`elegantrl envs`"]),
        ("what is this?", ["unknown environment 'what is this?'"]),
        ("LunarLander-v2", ["'LunarLander-v2' is retired", "use 'LunarLander-v3'"]),
        ("Pendulum-v0", ["'Pendulum-v0' is retired", "use 'Pendulum-v1'"]),
        ("Hopper-v2", ["'Hopper-v2' is retired", "use 'Hopper-v5'"]),
        ("Ant-v9", ["'Ant-v9' has no such version", "use 'Ant-v5'"]),
        ("CartPole", ["'CartPole' names no version", "use 'CartPole-v1'"]),
        ("no_such_module.at_all:Env", ["cannot import 'no_such_module.at_all'", "PYTHONPATH"]),
        ("gymnasium.envs.classic_control:CartPolEnv", ["'CartPolEnv'", "did you mean", "'CartPoleEnv'"]),
        ("math:pi", ["'math:pi'", "no class or function 'pi'"]),
        ("envpool:Qzx", ["'Qzx'", "envpool.list_all_envs()"]),
        ("envpool:CartPol-v1", ["'CartPol-v1'", "did you mean", "'CartPole-v1'"]),
    ],
)
def test_names(name: str, parts: list[str]) -> None:
    message = message_of(lambda: make_env(name))
    assert all(part in message for part in parts), message


def test_a_version_that_still_exists_is_made_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_env("CartPole-v0").spec.max_episode_steps == 200


@pytest.mark.parametrize(
    ("name", "module", "loaded", "extra"),
    [
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d", "box2d"),
        ("Hopper-v5", "mujoco", "gymnasium.envs.mujoco", "mujoco"),
        ("envpool:CartPole-v1", "envpool", "envpool", "envpool"),
        ("ALE/Pong-v5", "ale_py", "ale_py", "atari"),
        ("MinAtar/Freeway-v1", "minatar", "minatar", "minatar"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid", "minigrid"),
        ("Foraging-8x8-2p-2f-coop-v3", "lbforaging", "lbforaging", "marl"),
        ("rware-tiny-2ag-v2", "rware", "rware", "marl"),
        ("mpe2:simple_tag_v3", "mpe2", "mpe2", "marl"),
    ],
)
def test_a_missing_dependency_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, loaded: str, extra: str
) -> None:
    for key in [key for key in sys.modules if key.startswith((f"{module}.", loaded))]:
        monkeypatch.delitem(sys.modules, key)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    if extra in PACKAGED:
        monkeypatch.delitem(gym.registry, name, raising=False)
    message = message_of(lambda: make_env(name), ConfigError)
    assert name in message and f"pip install 'elegantrl[{extra}]'" in message
    if not name.startswith("envpool"):
        assert name not in dict(env_names()), "what cannot be made is not offered"


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: make_env("CartPole-v1", 0), ["num_envs=0", "at least 1"]),
        (lambda: make_env("CartPole-v1", gravitty=1), ["'CartPole-v1'", "gravitty"]),
        (lambda: make_env("Chasing", dimm=1), ["'Chasing'", "dimm"]),
        (lambda: make_env("envpool:CartPole-v1", gravitty=1), ["'envpool:CartPole-v1'", "gravitty"]),
        (lambda: make_env(Stub(), gravity=1), ["gravity", "pass its class"]),
        (lambda: make_env(make_env("Chasing", 2), 3), ["'Chasing'", "num_envs=2", "num_envs=3"]),
        (lambda: make_env(gym.make_vec("CartPole-v1", 2), 3), ["num_envs=2", "num_envs=3"]),
    ],
)
def test_settings(call: Callable[[], Any], parts: list[str]) -> None:
    message = message_of(call, ConfigError)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        (Stub(np.zeros(3)), ["'Stub'", "shape (3,)", "expected (2,)"]),
        (Stub(np.array([0.0, np.nan])), ["'Stub'", "NaN or infinity", "expected finite"]),
        (Stub(np.array(["a", "b"])), ["'Stub'", "dtype <U1", "expected numbers"]),
        (
            Stub(observation_space=gym.spaces.Dict({"a": gym.spaces.Tuple([gym.spaces.Text(3)])})),
            ["observation_space['a'][0] is Text", "expected Box"],
        ),
        (
            Stub(observation_space=gym.spaces.Sequence(gym.spaces.Discrete(2))),
            ["observation_space is Sequence", "expected Box"],
        ),
        (
            Stub(observation_space=gym.spaces.Dict({"a": gym.spaces.Graph(gym.spaces.Discrete(2), None)})),
            ["observation_space['a'] is Graph", "expected Box", "leave it out with a wrapper"],
        ),
        (
            Stub(observation_space=gym.spaces.OneOf([gym.spaces.Discrete(2), gym.spaces.Discrete(3)])),
            ["observation_space is OneOf", "expected Box"],
        ),
        (
            Stub(observation_space=gym.spaces.Dict({"a": gym.spaces.Discrete(2)})),
            ["observation that is an array of shape (2,)", "expected a dict with ['a']"],
        ),
        (
            Stub({"a": 7}, gym.spaces.Dict({"a": gym.spaces.Discrete(2)})),
            ["an observation['a'] 7, expected a choice from 0 to below 2"],
        ),
        (
            Stub(np.full((2, 2), 300), gym.spaces.Box(0, 255, (2, 2), np.uint8)),
            ["dtype int64", "expected uint8"],
        ),
        (
            Stub(action_space=gym.spaces.Dict({"a": gym.spaces.Discrete(2)})),
            ["action_space is Dict", "expected Discrete"],
        ),
        (Stub(action_space=gym.spaces.Box(0, 9, (2,), np.int32)), ["Box of int32", "a Box of floats"]),
        (object(), ["'object'", "no observation_space", "gymnasium.Env"]),
    ],
)
def test_environments_that_do_not_fit(env: Any, parts: list[str]) -> None:
    message = message_of(lambda: make_env(env).reset(0))
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("name", ["CartPole-v1", "TensorCartPole"])
def test_an_action_of_the_wrong_shape(name: str) -> None:
    env = make_env(name, 2)
    env.reset(0)
    message = message_of(lambda: env.step(torch.zeros(2, 1, dtype=torch.int64)))
    assert f"{name!r}" in message and "shape (2, 1)" in message and "expected (2,)" in message


class Answering(Stub):
    """An environment whose steps return ``answer``."""

    answer: Any = None

    def step(self, action: Any) -> Any:
        return self.answer


GOOD = np.zeros(2, dtype=np.float32)
BAD_STEPS: list[tuple[Any, list[str]]] = [
    ((GOOD, 0.0, False), ["3 values", "expected 5"]),
    (None, ["a NoneType", "expected 5"]),
    ((0.5, 0.0, False, False, {}), ["shape ()", "expected (2,)"]),
    ((np.zeros(1, dtype=np.float32), 0.0, False, False, {}), ["shape (1,)", "expected (2,)"]),
    ((np.array(["1", "2"]), 0.0, False, False, {}), ["dtype <U1", "expected numbers"]),
    ((GOOD, 0.0, "False", False, {}), ["terminated 'False'", "True or False"]),
    ((GOOD, 0.0, False, None, {}), ["truncated None", "True or False"]),
    ((GOOD, 0.0, 2, False, {}), ["terminated 2", "True or False"]),
    ((GOOD, 0.0, np.array([True]), False, {}), ["terminated array([ True])", "True or False"]),
    ((GOOD, "1.0", False, False, {}), ["reward '1.0'", "a number"]),
    ((GOOD, None, False, False, {}), ["reward None", "a number"]),
    ((GOOD, np.zeros(1), False, False, {}), ["reward array([0.])", "a number"]),
    ((GOOD, 0.0, "False", {}), ["done 'False'", "True or False"]),
]


@pytest.mark.parametrize(("answer", "parts"), BAD_STEPS)
def test_a_malformed_step(answer: Any, parts: list[str]) -> None:
    # R9: smaller observations were broadcast, text counted as true, and three values ended a run.
    env = make_env(Answering, 2)
    env.reset(0)
    env.envs[1].answer = answer  # type: ignore[attr-defined]
    env.envs[0].answer = (GOOD, 1.0, False, False, {})  # type: ignore[attr-defined]
    step = env.step(torch.zeros(2, dtype=torch.int64))
    (fault,) = step.faults
    assert fault.lane == 1 and fault.is_breach, "the lane is reset, the other goes on"
    assert "'Answering'" in fault.what and all(part in fault.what for part in parts), fault.what
    assert step.reward.tolist() == [1, 0] and step.truncated.tolist() == [False, True] and not step.terminated.any()
    assert all(part in message_of(lambda: check_env(env)) for part in parts)


@pytest.mark.parametrize("flag", [True, 1, np.True_, np.array(True), 1.0, torch.tensor(True)])
def test_flags_that_count(flag: Any) -> None:
    env = make_env(Answering)
    env.reset(0)
    for answer in ((GOOD, np.float32(1), flag, 0, {}), [GOOD, torch.tensor(1.0), flag, None]):
        env.envs[0].answer = answer  # type: ignore[attr-defined]
        step = env.step(torch.zeros(1, dtype=torch.int64))
        assert step.terminated.item() and step.reward.item() == 1


def test_an_instance_that_cannot_be_copied() -> None:
    env = Stub()
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    message = message_of(lambda: make_env(env, 2))
    assert "'Stub'" in message and "pass its class" in message


def test_a_vector_env_that_ignores_the_reset_mask() -> None:
    env = make_env(CartPoleVectorEnv(num_envs=4))
    env.reset(0)

    def push() -> None:
        for _ in range(30):
            env.step(torch.tensor([0, 0, 1, 0]))

    message = message_of(push)
    assert "reset_mask" in message and "SAME_STEP" in message


@pytest.mark.parametrize(("name", "num_envs"), [("Pendulum-v1", 2), ("CartPole-v1", 2), ("TensorCartPole", 2)])
def test_a_state_of_another_number_of_lanes(name: str, num_envs: int) -> None:
    env, other = make_env(name, num_envs), make_env(name, num_envs + 1)
    assert "reset" in message_of(env.state_dict, CheckpointError), "before the first reset there is no state"
    env.reset(0)
    message = message_of(lambda: other.load_state_dict(env.state_dict()), CheckpointError)
    assert f"{name!r}" in message and "num_envs=3" in message and message.endswith("2")


def test_register_env_and_env_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elegantrl.envs.make._factories", dict(_factories))
    register_env("Tiny", lambda num_envs, device: make_env("Chasing", num_envs, device=device, dim=1))
    assert make_env("Tiny", 3).spec.obs_dim == 4
    names = dict(env_names())
    assert names["Tiny"] == names["TensorCartPole"] == "tensor"
    assert names["Hopper-v5"] == "mujoco" and names["LunarLander-v3"] == "box2d"
    assert not names.keys() & {"Hopper-v4", "CartPole-v0", "phys2d/CartPole-v1"}
    assert {"Blackjack-v1", "CarRacing-v3"} <= names.keys()


def test_every_offered_environment_can_be_made() -> None:
    families: dict[str, int] = {}
    for name, family in env_names():
        families[family] = families.get(family, 0) + 1
        if family in PACKAGED and families[family] > 2:  # the packages have hundreds
            continue
        env = make_env(name, 1)
        leaves, found = tree.named_leaves(env.spec.obs), tree.named_leaves(env.reset(0))
        assert {path: (x.shape[1:], x.dtype) for path, x in found.items()} == {
            path: (leaf.shape, leaf.torch_dtype) for path, leaf in leaves.items()
        }
        env.close()
    assert families.keys() >= PACKAGED
