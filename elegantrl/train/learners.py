"""The learner as the supervisor sees it, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..execute.base import Executor
from ..nets.policies import PolicySpec
from ..types import Fragment, Metrics, State, Weights


class Learners:
    """One learner on an executor."""

    def __init__(self, executor: Executor, build: Callable[[], Any], timeout: float | None = None):
        self.executor, self.build, self.timeout = executor, build, timeout
        self.handle = executor.spawn(build)

    def ask(self, method: str, *args: Any) -> Any:
        return self.handle.call(method, *args, timeout=self.timeout).result()

    def update(self, fragments: Sequence[Fragment]) -> tuple[Metrics, Weights]:
        metrics: Metrics = self.ask("update", fragments)
        return metrics, self.weights()

    def weights(self) -> Weights:
        weights: Weights = self.ask("weights")
        return weights

    def policy_spec(self) -> PolicySpec:
        spec: PolicySpec = self.ask("policy_spec")
        return spec

    def num_updates(self) -> int:
        return int(self.ask("num_updates"))

    def state_dict(self) -> dict[str, State]:
        return {"learner": self.ask("state_dict")}

    def load_state_dict(self, parts: dict[str, State]) -> None:
        self.ask("load_state_dict", parts["learner"])

    def end_open_episodes(self, cut: list[np.ndarray]) -> None:
        self.ask("end_open_episodes", cut)

    def busy_seconds(self) -> float:
        """How long the learner has worked."""
        return self.handle.busy_seconds

    def restart(self) -> None:
        """A fresh learner in place of one that died."""
        self.executor.kill(self.handle)
        self.handle = self.executor.spawn(self.build, self.timeout)
