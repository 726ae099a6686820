"""The environment contract: N environments behind ``reset`` and ``step``, tensors in and out.

Axes: N environment lanes, O observation, A action.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor

from .. import tree
from ..errors import RoleError, SpecError
from ..rng import torch_stream
from ..tree import Tree
from ..types import EnvSpec, Leaf, State, Step

log = logging.getLogger(__name__)

Exactness = Literal["exact", "replayed", "episode"]
"""How much of an open episode survives a resume: its whole state, a verified replay of it, or nothing."""


class VecEnv(ABC):
    """N environments that step together and reset by themselves.

    Every tensor lives on ``device``. An episode that ends is reset within the same step: ``Step.obs`` is then the first
    observation of the next episode and ``Step.next_obs`` the last one of the old. Where lanes can be treated alone, a
    lane that fails does not fail the others: it is reset and ``Step.faults`` says so. Seeds go in through ``reset``; an
    implementation draws from streams of its own and never from a global generator.
    """

    spec: EnvSpec
    device: torch.device

    @abstractmethod
    def reset(self, seed: int) -> Tree:
        """Start all lanes anew, deterministically; return the first observations [N, ...]."""

    @abstractmethod
    def step(self, action: Tensor) -> Step:
        """Take one action per lane, of the shape and type of ``spec.action_leaf`` behind the axis N.

        Continuous actions mean [-1, 1]; values outside are clipped, since a Gaussian policy may exceed them.
        """

    def reset_lanes(self, lanes: Tensor) -> Tree | None:
        """Begin new episodes where ``lanes`` [N] is true; return the observations [N, ...] the policy sees now.

        None if lanes cannot be treated alone.
        """
        return None

    @abstractmethod
    def state_dict(self) -> State:
        """Everything needed to continue; ``load_state_dict`` on a fresh instance must reproduce the next steps."""

    @abstractmethod
    def load_state_dict(self, state: State) -> Tree:
        """Continue from ``state``; return the observations [N, ...] the policy sees now."""

    @property
    def exactness(self) -> Exactness:
        """What ``load_state_dict`` would restore of the open episodes if the state were saved now."""
        return "exact"

    def restarted_lanes(self) -> Tensor:
        """The lanes [N] whose open episodes the last ``load_state_dict`` could not restore and began anew."""
        return torch.full((self.spec.num_envs,), self.exactness == "episode", device=self.device)

    def close(self) -> None:  # noqa: B027  an environment without resources has nothing to release
        """Release what the environments hold."""


def try_one_step(env: VecEnv) -> None:
    """Refuse an environment whose steps do not fit its spaces; whatever else goes wrong a run may forgive."""
    env.reset(0)
    (action,) = _random_actions(env.spec, 0, 1, env.device)
    try:
        step = env.step(action)
    except SpecError:
        raise
    except Exception:
        log.debug("environment %r fails at its first step", env.spec.name, exc_info=True)
    else:
        for fault in step.faults:
            if fault.is_breach:
                raise SpecError(fault.what.removeprefix("SpecError: "))


def raise_faults(env: VecEnv, step: Step) -> Step:
    """``step`` itself, or the first of its faults as an error, for callers that cannot go on after one."""
    for fault in step.faults:
        kind = SpecError if fault.is_breach else RoleError
        raise kind(f"environment {env.spec.name!r} failed in lane {fault.lane}: {fault.what} ({fault.where})")
    return step


def check_env(env: VecEnv, seed: int = 0, steps: int = 200) -> None:
    """Take ``steps`` random actions and raise ``SpecError`` at the first breach of the contract."""
    actions = _random_actions(env.spec, seed, steps, env.device)
    obs = env.reset(seed)
    _check_obs(env, "reset observation", obs)
    first = _copy(obs)
    history, copies = [], []
    for action in actions:
        step = raise_faults(env, env.step(action))
        _check_step(env, step)
        history.append(step)
        copies.append(_copy(step._replace(faults=())))
    _require(env, _equal(obs, first), "reset observation", "never written to again", "other values after a step")
    for step, copy in zip(history, copies, strict=True):
        _check_same(env, step, copy, "never written to again")
    _check_ends_differ(env, history)

    _require(env, _equal(env.reset(seed), first), "reset observation", "equal under the same seed", "other values")
    half = steps // 2
    for action, step in zip(actions[:half], history, strict=False):
        _check_same(env, env.step(action), step, "equal under the same seed and actions")
    _check_state(env, actions[half:])


def _random_actions(spec: EnvSpec, seed: int, steps: int, device: torch.device) -> list[Tensor]:
    generator = torch_stream(seed, "check_env")
    actions = spec.action.random((steps, spec.num_envs, *spec.team), generator)
    if spec.action.kind == "continuous":
        actions *= 1.2  # a little beyond [-1, 1], as a Gaussian policy goes
    return list(actions.to(device))


def _require(env: VecEnv, holds: bool, field: str, expected: str, got: str) -> None:
    if not holds:
        raise SpecError(f"environment {env.spec.name!r}: {field} is expected to be {expected}, got {got}")


def _check_obs(env: VecEnv, field: str, obs: Any) -> None:
    """Refuse an observation whose tree, shapes or types are not those of the spec."""
    expected, found = tree.named_leaves(env.spec.obs), tree.named_leaves(obs)
    _require(env, list(expected) == list(found), field, f"a tree of {list(expected)}", str(list(found)))
    for path, leaf in expected.items():
        _check_tensor(env, f"{field} {path}".strip(), found[path], leaf)


def _check_tensor(env: VecEnv, field: str, value: Any, leaf: Leaf) -> None:
    shape = (env.spec.num_envs, *leaf.shape)
    _require(env, isinstance(value, Tensor), field, "a tensor", type(value).__name__)
    _require(env, value.dtype == leaf.torch_dtype, field, str(leaf.torch_dtype), str(value.dtype))
    _require(env, value.shape == shape, field, f"of shape {shape}", str(tuple(value.shape)))
    _require(env, value.device.type == env.device.type, field, f"on {env.device}", str(value.device))
    _require(env, bool(torch.isfinite(value).all()), field, "finite", "NaN or infinity")


def _check_step(env: VecEnv, step: Step) -> None:
    for fault in step.faults:
        _require(env, False, "step", "free of faults", f"{fault.what} in lane {fault.lane} ({fault.where})")
    _check_obs(env, "obs", step.obs)
    _check_tensor(env, "reward", step.reward, env.spec.reward_leaf)
    _check_tensor(env, "terminated", step.terminated, Leaf((), "bool"))
    _check_tensor(env, "truncated", step.truncated, Leaf((), "bool"))
    _check_obs(env, "next_obs", step.next_obs)
    both = bool((step.terminated & step.truncated).any())
    _require(env, not both, "truncated", "false where terminated is true", "both true")
    going = ~(step.terminated | step.truncated)
    same = _equal(tree.rows(step.obs, going), tree.rows(step.next_obs, going))
    _require(env, same, "next_obs", "equal to obs where no episode ended", "other values")


def _check_same(env: VecEnv, step: Step, other: Step, expected: str) -> None:
    for field, ours, theirs in zip(Step._fields, step, other, strict=True):
        _require(env, field == "faults" or _equal(ours, theirs), field, expected, "other values")


def _equal(obs: Any, other: Any) -> bool:
    pairs = zip(tree.leaves(obs), tree.leaves(other), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def _copy(obs: Any) -> Any:
    return tree.map_leaves(torch.clone, obs)


def _check_ends_differ(env: VecEnv, history: list[Step]) -> None:
    """A successor that always equals the next episode's first observation was taken after the reset."""
    ended = [(step, step.terminated | step.truncated) for step in history]
    pairs = [(tree.rows(step.obs, done), tree.rows(step.next_obs, done)) for step, done in ended if done.any()]
    varies = any(not _equal(step.next_obs, history[0].next_obs) for step in history)
    differs = any(not _equal(obs, next_obs) for obs, next_obs in pairs)
    _require(
        env,
        differs or not pairs or not varies,
        "next_obs",
        "the last observation of the old episode where it ended",
        "the first one of the next episode",
    )


def _check_state(env: VecEnv, actions: list[Tensor]) -> None:
    """Going on from a saved state must repeat the steps, or at least be deterministic if episodes restart."""
    state = env.state_dict()
    _require(env, _storable(state), "state_dict", "made of dicts, tensors and JSON values", "something else")
    exact = env.exactness != "episode"
    if exact:
        expected = [env.step(action) for action in actions]
        obs = env.load_state_dict(state)
    else:
        obs = env.load_state_dict(state)
        expected = [env.step(action) for action in actions]
        again = env.load_state_dict(state)
        _require(env, _equal(obs, again), "load_state_dict", "deterministic", "other observations")
    _check_obs(env, "observation after load_state_dict", obs)
    kept = env.exactness != "episode" or not exact
    _require(env, kept, "exactness", "what it was before load_state_dict", env.exactness)
    for action, step in zip(actions, expected, strict=True):
        _check_same(env, env.step(action), step, "equal after load_state_dict")


def _storable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _storable(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_storable(item) and not isinstance(item, Tensor) for item in value)
    return value is None or isinstance(value, Tensor | str | int | float | bool)
