"""Model fusion: several training states of one kind of agent become one, by weighted averages.

Pure functions on states of ``Agent.training_state``: networks, their targets, temperatures and the optimisers' moments
are averaged; observation statistics are pooled, and the policy's normaliser is computed from the pooled statistics.
Counters and random streams are those of the first state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import ConfigError
from ..nets.normalize import ObsNorm, RunningStats
from ..types import State


def fuse(states: Sequence[State], weights: Sequence[float] | None = None) -> State:
    """One training state from any number of them; equal weights by default."""
    shares = normalize_weights(weights, len(states))
    first = states[0]
    names = set(first["modules"])
    for state in states[1:]:
        if set(state["modules"]) != names or set(state["optimizers"]) != set(first["optimizers"]):
            raise ConfigError("agents of different kinds cannot be fused; fuse runs of one agent with equal settings")
    stats = pool([s["obs_stats"] for s in states])
    return {
        **first,
        "modules": average([s["modules"] for s in states], shares) | normalizer(stats, names),
        "optimizers": {name: average([s["optimizers"][name] for s in states], shares) for name in first["optimizers"]},
        "obs_stats": stats,
    }


def average(states: Sequence[dict[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The weighted average of each tensor; integers cannot be averaged and are those of the first state."""
    fused = {}
    for name, tensor in states[0].items():
        if any(s[name].shape != tensor.shape for s in states):
            sizes = " and ".join(str(tuple(s[name].shape)) for s in states)
            raise ConfigError(f"{name} has sizes {sizes}: networks of different widths cannot be fused")
        if tensor.is_floating_point():
            parts = [share * s[name] for share, s in zip(shares, states, strict=True)]
            fused[name] = torch.stack(parts).sum(0)
        else:
            fused[name] = tensor.clone()
    return fused


def pool(stats: Sequence[State]) -> State:
    """Mean and squared deviations over the observations of all states, by leaf if observations are trees."""
    if not stats[0]:
        return {}
    if "count" not in stats[0]:
        return {leaf: pool([s[leaf] for s in stats]) for leaf in stats[0]}
    count = sum((s["count"] for s in stats), torch.zeros_like(stats[0]["count"]))
    mean = sum((s["mean"] * (s["count"] / count.clamp(min=1)) for s in stats), torch.zeros_like(stats[0]["mean"]))
    m2 = sum((s["m2"] + s["count"] * (s["mean"] - mean).square() for s in stats), torch.zeros_like(mean))
    return {"count": count, "mean": mean, "m2": m2}


def normalizer(stats: State, names: Iterable[str], norm: str = ".norm") -> dict[str, Tensor]:
    """The buffers of normalisers, from pooled statistics: averaged buffers would jump at the next update."""
    if not stats:
        return {}
    if "count" not in stats:
        parts = [normalizer(part, names, f"{norm}.leaves.{leaf}") for leaf, part in stats.items()]
        return {name: value for part in parts for name, value in part.items()}
    shape, device = tuple(stats["mean"].shape), stats["mean"].device
    running, built = RunningStats(shape, device), ObsNorm(shape).to(device)
    running.load_state_dict(stats)
    running.write_to(built)
    values = {f"{norm}.{name}": value for name, value in built.named_buffers()}
    return {name: value.clone() for name in names for end, value in values.items() if name.endswith(end)}


def normalize_weights(weights: Sequence[float] | None, number: int) -> list[float]:
    """Weights that sum to 1, equal ones if none are given."""
    if number < 1:
        raise ConfigError("there is nothing to average; give at least one")
    if weights is None:
        return [1 / number] * number
    if len(weights) != number:
        raise ConfigError(f"{len(weights)} weights for {number} models; give one weight for each")
    if min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise ConfigError(f"weights {list(weights)} are not usable: they must be >= 0 and not all 0")
    return [w / sum(weights) for w in weights]
