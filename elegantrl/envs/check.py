"""``check_env``: takes random actions and finds the first breach of the environment contract.

Axes: N environment lanes, G agents of a team.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import tree
from ..errors import SpecError
from ..rng import torch_stream
from ..types import Leaf, Obs, Step, active_of
from .masks import allowed_actions, empty_lanes
from .vec_env import VecEnv, raise_faults


def check_env(env: VecEnv, seed: int = 0, steps: int = 200) -> None:
    """Take ``steps`` random actions that masks allow and raise ``SpecError`` at the first breach of the contract."""
    spec = env.spec
    actions = spec.action.random((steps, spec.num_envs, *spec.team), torch_stream(seed, "check_env")).to(env.device)
    if spec.action.kind == "continuous":
        actions *= 1.2  # a little beyond [-1, 1], like actions of a Gaussian policy
    obs = env.reset(seed)
    _check_obs(env, "reset observation", obs)
    first = _copy(obs)
    history: list[Step] = []
    copies = []
    for action in actions:
        before = history[-1].obs if history else obs
        step = raise_faults(env, env.step(allowed_actions(action, before, spec.action)))
        _check_step(env, step)
        _check_stacks(env, before, step.next_obs)
        _check_ended_agents(env, before, step)
        history.append(step)
        copies.append(_copy(step._replace(faults=())))
    _require(env, _equal(obs, first), "reset observation", "never written to again", "other values after a step")
    for step, copy in zip(history, copies, strict=True):
        _check_same(env, step, copy, "never written to again")
    _check_ends_differ(env, history)

    again = env.reset(seed)
    _require(env, _equal(again, first), "reset observation", "equal under the same seed", "other values")
    half = steps // 2
    repeated = _take(env, again, actions[:half])
    for ours, step in zip(repeated, history, strict=False):
        _check_same(env, ours, step, "equal under the same seed and actions")
    _check_state(env, repeated[-1].obs if repeated else again, actions[half:])


def _take(env: VecEnv, obs: Any, actions: Tensor) -> list[Step]:
    """Steps from ``obs`` with actions [T, N, ...], as far as masks allow them."""
    steps: list[Step] = []
    for action in actions:
        steps.append(env.step(allowed_actions(action, obs, env.spec.action)))
        obs = steps[-1].obs
    return steps


def _require(env: VecEnv, holds: bool, field: str, expected: str, got: str) -> None:
    if not holds:
        raise SpecError(f"environment {env.spec.name!r}: {field} is expected to be {expected}, got {got}")


def _check_obs(env: VecEnv, field: str, obs: Any, ended: Tensor | None = None) -> None:
    """Refuse an observation whose tree, shapes or types are not those of the spec, and a mask that forbids all.

    Where an episode ``ended`` [N] no action follows, so a mask may forbid all.
    """
    expected, found = tree.named_leaves(env.spec.obs), tree.named_leaves(obs)
    _require(env, list(expected) == list(found), field, f"a tree of {list(expected)}", str(list(found)))
    for path, leaf in expected.items():
        _check_tensor(env, f"{field} {path}".strip(), found[path], leaf)
    if isinstance(obs, Obs) and obs.mask is not None:
        mask = obs.mask if obs.active is None else obs.mask | ~obs.active.unsqueeze(-1)
        empty = empty_lanes(
            mask.numpy(force=True), env.spec.action, [] if ended is None else ended.nonzero().flatten().tolist()
        )
        _require(env, not empty, f"{field} mask", "true for an option of each choice", f"all false in lane {empty[:1]}")


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
    _check_obs(env, "next_obs", step.next_obs, step.terminated | step.truncated)
    if step.won is not None:
        _check_tensor(env, "won", step.won, Leaf((), "bool"))
        early = bool((step.won & ~(step.terminated | step.truncated)).any())
        _require(env, not early, "won", "false where no episode ended", "true in the middle of an episode")
    both = bool((step.terminated & step.truncated).any())
    _require(env, not both, "truncated", "false where terminated is true", "both true")
    going = ~(step.terminated | step.truncated)
    same = _equal(tree.rows(step.obs, going), tree.rows(step.next_obs, going))
    _require(env, same, "next_obs", "equal to obs where no episode ended", "other values")


def _check_ended_agents(env: VecEnv, before: Any, step: Step) -> None:
    """An agent that has ended sees zeros and has no reward; some agent of a team that goes on is active."""
    active = active_of(before)
    if active is None:
        return
    rewarded = bool((step.reward[~active] != 0).any())
    _require(env, not rewarded, "reward", "0 for agents that have ended", "another number")
    for field, obs in (("obs", step.obs), ("next_obs", step.next_obs)):
        ended = ~obs.active
        shown = any(bool(leaf[ended].any()) for leaf in tree.leaves(obs.seen))
        _require(env, not shown, f"{field} seen", "0 for agents that have ended", "other values")
    empty = bool((~step.obs.active).all(-1).any())
    _require(env, not empty, "obs active", "true for an agent of each lane", "false for all agents of a lane")


def _check_stacks(env: VecEnv, obs: Any, next_obs: Any) -> None:
    """Refuse stacks of frames that do not move on by one frame with each step; replay relies on it."""
    before, after = tree.named_leaves(obs), tree.named_leaves(next_obs)
    for path, leaf in tree.named_leaves(env.spec.obs).items():
        moved = leaf.stack == 1 or torch.equal(before[path][:, 1:], after[path][:, :-1])
        _require(env, moved, f"next_obs {path}".strip(), "the stack before the step and one frame more", "other frames")


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


def _check_state(env: VecEnv, obs: Any, actions: Tensor) -> None:
    """Continuing from a saved state must repeat the steps, or at least be deterministic if episodes restart."""
    state = env.state_dict()
    _require(env, _storable(state), "state_dict", "made of dicts, tensors and JSON values", "something else")
    exact = env.exactness != "episode"
    if exact:
        expected = _take(env, obs, actions)
        obs = env.load_state_dict(state)
    else:
        obs = env.load_state_dict(state)
        expected = _take(env, obs, actions)
        again = env.load_state_dict(state)
        _require(env, _equal(obs, again), "load_state_dict", "deterministic", "other observations")
    _check_obs(env, "observation after load_state_dict", obs)
    kept = env.exactness != "episode" or not exact
    _require(env, kept, "exactness", "what it was before load_state_dict", env.exactness)
    for ours, step in zip(_take(env, obs, actions), expected, strict=True):
        _check_same(env, ours, step, "equal after load_state_dict")


def _storable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _storable(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_storable, value))
    return value is None or isinstance(value, Tensor | str | int | float | bool)
