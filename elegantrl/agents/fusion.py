"""Model fusion: several training states of one kind of agent become one, by weighted averages.

Pure functions on what ``Agent.training_state`` returns: networks, their targets, temperatures and the optimisers'
moments are averaged; statistics of observations are pooled. Counters and random streams are those of the first state,
which is the one that lives on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ConfigError
from ..types import State


def fuse(states: Sequence[State], weights: Sequence[float] | None = None) -> State:
    """One training state from any number of them; equal weights by default."""
    shares = normalize_weights(weights, len(states))
    first = states[0]
    names = set(first["modules"])
    for state in states[1:]:
        if set(state["modules"]) != names or set(state["optimizers"]) != set(first["optimizers"]):
            raise ConfigError("agents of different kinds cannot be fused; fuse runs of one agent with equal settings")
    # Windows of the H-term are data, not weights: an average of two trajectories is none.
    data = {name: value for name, value in first["modules"].items() if name.startswith("h_term.")}
    return {
        **first,
        "modules": average([s["modules"] for s in states], shares) | data,
        "optimizers": {name: average([s["optimizers"][name] for s in states], shares) for name in first["optimizers"]},
        "obs_stats": pool([s["obs_stats"] for s in states]),
    }


def average(states: Sequence[dict[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Tensor by tensor; whole numbers cannot be averaged and are those of the first."""
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


def pool(stats: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean and squared deviations of all observations that any of them has seen."""
    if not stats[0]:
        return {}
    count = sum((s["count"] for s in stats), torch.zeros_like(stats[0]["count"]))
    mean = sum((s["mean"] * (s["count"] / count.clamp(min=1)) for s in stats), torch.zeros_like(stats[0]["mean"]))
    m2 = sum((s["m2"] + s["count"] * (s["mean"] - mean).square() for s in stats), torch.zeros_like(mean))
    return {"count": count, "mean": mean, "m2": m2}


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
