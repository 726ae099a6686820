"""Choosing a parent from scores that are sorted, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from .config import PopulationConfig

DRAWN = 3
"""Candidates of which a tournament takes the best."""


def choose(config: PopulationConfig, scores: Sequence[float], random: Random) -> int:
    """The place of the parent among ``scores``, which are finite and in falling order."""
    size = len(scores)
    match config.selection:
        case "truncation":
            return int(random.random() * cut(config.fraction, size))
        case "softmax":
            return _softmax(scores, random)
        case "tournament":
            return min(int(random.random() * size) for _ in range(DRAWN))
        case "random":
            return int(random.random() * size)


def cut(fraction: float, size: int) -> int:
    """The number of the best, or of the worst, among ``size``: at least one."""
    return max(1, round(fraction * size))


def _softmax(scores: Sequence[float], random: Random) -> int:
    """Drawn in proportion to the exponential of the z-score."""
    mean = math.fsum(scores) / len(scores)
    std = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    weights = [math.exp((score - mean) / std) if std > 0.0 else 1.0 for score in scores]
    left = random.random() * math.fsum(weights)
    for place, weight in enumerate(weights):
        left -= weight
        if left < 0.0:
            return place
    return len(scores) - 1
