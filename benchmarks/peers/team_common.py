"""What the drivers of other systems for teams share: the environment that tells the rule.

Each module ``team_*`` has one function, ``train(algorithm, seed)``, which trains a team on ``mpe2:simple_spread_v3`` in
this process until the rule of threshold_run.py ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpe2 import simple_spread_v3
from pettingzoo.utils.wrappers import BaseParallelWrapper

if TYPE_CHECKING:
    from threshold_run import Rule


class WatchedTeam(BaseParallelWrapper):  # type: ignore[misc]
    """Tells the rule the return of each episode, summed over the agents. Rule and count are of all environments."""

    rule: Rule
    steps = 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.total = 0.0
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        if WatchedTeam.steps == 0:
            self.rule.start()
        WatchedTeam.steps += 1
        seen, rewards, terminated, truncated, infos = super().step(actions)
        self.total += float(sum(rewards.values()))
        if not self.env.agents:
            self.rule.see([self.total], WatchedTeam.steps)
        return seen, rewards, terminated, truncated, infos


def make(**options: Any) -> WatchedTeam:
    return WatchedTeam(simple_spread_v3.parallel_env(**options))
