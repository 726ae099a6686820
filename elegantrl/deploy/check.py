"""Compares a file with the policy that it was made of, on made-up observations.

Axes: N rows, G agents, C choices, M options of the largest choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from ..nets.distributions import by_choice
from ..nets.policies import EnsemblePolicy, NetPolicy, Policy, QPolicy
from ..store.trained import TrainedPolicy
from ..tree import Tree
from .graph import OneSide, PolicyGraph
from .ports import Array, Port, nest

ROWS, STEPS, EPISODE = 20, 50, 25
"""Observations at once, steps in a row, and steps of an episode."""
TOLERANCE = 1e-5

Run = Callable[[list[Array]], Sequence[Array]]
"""Arrays of the inputs of a graph in their order give those of its outputs."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How well a file agrees with ``TrainedPolicy.act``."""

    observations: int
    difference: float
    """The largest difference of an action; of a wider range than [-1, 1] as a share of half of it, and of a number
    without bounds that is larger than 1 as a share of it."""
    ties: int
    """Choices that differ, between options whose scores do not."""


@torch.no_grad()
def compare(trained: TrainedPolicy, graph: PolicyGraph, run: Run) -> Agreement:
    """Whether ``run`` acts as the policy does; an error if it does not.

    One side gets the observations of a step at once, the other one by one, so that no row may depend on others.
    """
    rng = np.random.default_rng(0)
    state = [np.zeros((ROWS, *port.shape), port.dtype) for port in graph.state]
    largest, ties = 0.0, 0
    for step in range(STEPS):
        raw = {port.name: sample(port, rng) for port in graph.side.inputs}
        for side in graph.side.sides:
            if side.mask is not None:
                open_one(raw[side.mask.name], side, rng)
        if step % EPISODE == 0:
            carries: list[dict[str, Any]] = [{} for _ in range(ROWS)]
        first = [np.full(ROWS, step % EPISODE == 0)] if graph.state else []
        inputs = [*raw.values(), *state, *first]
        outputs = list(run(inputs))
        expected = [act_on_row(trained, graph, raw, row, carry) for row, carry in enumerate(carries)]
        for i, port in enumerate(graph.side.outputs):
            mine = np.stack([np.asarray(pick(one, port)) for one in expected])
            if mine.dtype != outputs[i].dtype or mine.shape != outputs[i].shape:
                raise ConfigError(f"{port.name} is {outputs[i].dtype} {outputs[i].shape}, the policy's {mine.dtype}")
            if mine.dtype.kind == "f":
                largest = max(largest, float((np.abs(mine - outputs[i]) / scale(port, mine)).max()))
            else:
                ties += int((mine != outputs[i]).sum())
        if ties:
            refuse_unless_tied(graph, inputs, outputs)
        state = outputs[len(graph.side.outputs) :]
    if not largest <= TOLERANCE:  # NaN too
        raise ConfigError(
            f"the exported policy differs from the trained one by {largest:.2g}, and {TOLERANCE:g} is allowed; a part"
            f" of the network computes something else when it is traced"
        )
    return Agreement(observations=ROWS * STEPS, difference=largest, ties=ties)


def sample(port: Port, rng: np.random.Generator) -> Array:
    """Random values [N, *shape] of any kind that the port may get."""
    dtype, shape = np.dtype(port.dtype), (ROWS, *port.shape)
    if port.low is not None and port.high is not None:
        return rng.integers(port.low, port.high + 1, shape).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, {"b": 2, "u": 256, "i": 128}[dtype.kind], shape).astype(dtype)


def open_one(mask: Array, side: OneSide, rng: np.random.Generator) -> None:
    """Make the flags random, with one option of every choice that is allowed for certain."""
    flags = rng.integers(0, 2, (ROWS, side.action.num_outputs))
    starts = np.cumsum([0, *side.action.choices[:-1]])
    for start, size in zip(starts, side.action.choices, strict=True):
        flags[np.arange(ROWS), start + rng.integers(0, size, ROWS)] = 1
    mask[...] = flags.reshape(mask.shape)


def act_on_row(
    trained: TrainedPolicy, graph: PolicyGraph, raw: dict[str, Array], row: int, carry: dict[str, Any]
) -> Any:
    """The action of the policy itself."""
    given = nest({port.path: raw[port.name][row] for port in graph.side.inputs})
    return trained.act(given["obs"], carry, mask=given.get("mask"))


def pick(action: Any, port: Port) -> Any:
    """The part of an action that a port holds."""
    for key in port.path[1:]:
        action = action[key]
    return action


def scale(port: Port, action: Array) -> Array:
    """What a difference of 1 is compared with."""
    assert port.low is not None and port.high is not None
    half = port.high.astype(np.float64) / 2 - port.low.astype(np.float64) / 2
    return np.maximum(1, np.where(np.isfinite(half), half, np.abs(action)))


# ---- choices between options that are equally good


def refuse_unless_tied(graph: PolicyGraph, inputs: list[Array], outputs: list[Array]) -> None:
    """An error if an action that is a choice has a lower score than the best one."""
    given = {port.name: torch.as_tensor(x) for port, x in zip(graph.inputs, inputs, strict=True)}
    obs, carry, _ = graph.read(given)
    chosen = [
        side.writer.choice(torch.as_tensor(outputs[i]), len(graph.spec.action.choices))
        for i, side in enumerate(graph.side.sides)
    ]
    lost = lost_score(graph.policy, obs, carry, torch.stack(chosen, 1) if graph.policy.team else chosen[0])
    if lost > TOLERANCE:
        raise ConfigError(
            f"the exported policy takes another option than the trained one, whose score is lower by {lost:.2g}; a part"
            f" of the network computes something else when it is traced"
        )


def lost_score(policy: Policy, obs: Tree, carry: Tree, chosen: Tensor) -> float:
    """By how much the scores of the options ``chosen`` [N, (G,) C] are below the best ones at most."""
    choices = policy.action_spec.choices
    if isinstance(policy, EnsemblePolicy):
        scores = by_choice(policy.vote(obs), choices, float("-inf"))
    elif isinstance(policy, QPolicy):
        out, _ = policy.step(obs, carry)
        scores = out[..., int(policy.dueling) :].unsqueeze(-2)
        chosen = policy.index(chosen if len(choices) > 1 else chosen[..., 0]).unsqueeze(-1)
    elif isinstance(policy, NetPolicy):
        out, _ = policy.step(obs, carry)
        scores = out.unsqueeze(-2) if len(choices) == 1 else out  # [..., C, M]
    else:
        return float("inf")
    taken = scores.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    return float((scores.max(-1).values - taken).max())
