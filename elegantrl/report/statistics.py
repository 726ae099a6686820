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

    Each of n values represents 1/n of the distribution; only the part between the quartiles counts. Of three values the
    middle one has weight 2/3 and each of the others 1/6; of four the two in the middle have 1/2; two are averaged.
    """
    count = values.shape[axis]
    # Each value is four units wide, the quartiles lie after n and 3 n units.
    units = np.diff(np.arange(0, 4 * count + 1, 4).clip(count, 3 * count))
    return np.asarray(np.tensordot(units, np.sort(values, axis=axis), axes=(0, axis)) / (2 * count))


def bootstrap_interval(values: Array, confidence: float = 0.95) -> tuple[Array, Array]:
    """Both ends of the confidence interval of the interquartile mean over runs [runs, points], at every point.

    Resamples draw whole runs with replacement, as many as there are. For up to five runs all possible resamples are
    used, so that nothing is random; for more runs they are drawn from a fixed stream.
    """
    picks = _draws(values.shape[0])
    tails = 50.0 * (1 - confidence), 50.0 * (1 + confidence)
    # Point by point: all draws of all points at once would take hundreds of megabytes.
    means = (interquartile_mean(column[picks], axis=1) for column in values.T)
    # The resamples form a discrete distribution: its quantiles are values of it, without interpolation.
    bounds = [np.percentile(mean, tails, method="inverted_cdf") for mean in means]
    low, high = np.array(bounds).reshape(-1, 2).T
    return low, high


def _draws(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The indices of the runs in each resample [resamples, runs]."""
    if count**count <= RESAMPLES:
        return np.array(list(product(range(count), repeat=count)))
    return numpy_stream(0, "bootstrap", count).integers(count, size=(RESAMPLES, count))
