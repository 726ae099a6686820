"""The settings of one of several learners that share every batch and the replay memory."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from ..errors import ConfigError
from .fields import Section

C = TypeVar("C", bound=Section)


def settings_per_learner(config: C, num_learners: int, num_rows: int) -> C:
    """An agent's settings for one of several learners; ``num_rows`` are those of a whole rollout.

    Settings in environment steps stay the same: every learner counts the steps of all.
    """
    if num_learners <= 1:
        return config
    values: dict[str, Any] = {f.name: getattr(config, f.name) for f in fields(config)}
    share: dict[str, int] = {}
    for name in {"buffer_size", "h_store", "h_windows"} & values.keys():
        share[name] = max(1, values[name] // num_learners)
    if "batch_size" in values:
        size = values["batch_size"]
        is_whole = "buffer_size" not in values and size >= num_rows  # one batch per rollout: all rows of each learner
        if size % num_learners and not is_whole:
            less = size - size % num_learners
            sizes = " or ".join(str(n) for n in (less, less + num_learners) if n)
            raise ConfigError(
                f"agent.batch_size={size} cannot be divided equally among {num_learners} learners; use {sizes}"
            )
        share["batch_size"] = -(-size // num_learners)
    return replace(config, **share)
