"""Statistics over seeds: the interquartile mean and its bootstrap interval (Agarwal et al. 2021, arXiv:2108.13264)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ..rng import numpy_stream

Array = np.ndarray[Any, np.dtype[np.float64]]

RESAMPLES = 4000


def interquartile_mean(values: Array, axis: int = 0) -> Array:
    """The mean of the middle half of the values.

    Each of n values stands for 1/n of the whole; what of it lies between the quartiles counts. Of three values the
    middle one weighs 2/3 and each of the others 1/6; of four the two in the middle weigh 1/2; two are averaged.
    """
    count = values.shape[axis]
    # Each value is four units wide, the quartiles lie after n and 3 n units.
    units = np.diff(np.arange(0, 4 * count + 1, 4).clip(count, 3 * count))
    return np.asarray(np.tensordot(units, np.sort(values, axis=axis), axes=(0, axis)) / (2 * count))


def bootstrap_interval(values: Array, confidence: float = 0.95) -> tuple[Array, Array]:
    """Both ends of the interval in which the interquartile mean of the runs [runs, points] lies, at every point.

    Whole runs are drawn with replacement, as many as there are. Up to five runs all possible draws are looked at, so
    that nothing is left to chance; beyond, a fixed stream chooses.
    """
    picks = _draws(values.shape[0])
    tails = 50.0 * (1 - confidence), 50.0 * (1 + confidence)
    # Point by point: all draws of all points at once would take hundreds of megabytes.
    means = (interquartile_mean(column[picks], axis=1) for column in values.T)
    # The draws are a distribution of steps, so its quantiles are values of it and not between them.
    bounds = [np.percentile(mean, tails, method="inverted_cdf") for mean in means]
    low, high = np.array(bounds).reshape(-1, 2).T
    return low, high


def _draws(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which runs each resample holds [resamples, runs]."""
    if count**count <= RESAMPLES:
        return np.array(list(product(range(count), repeat=count)))
    return numpy_stream(0, "bootstrap", count).integers(count, size=(RESAMPLES, count))
