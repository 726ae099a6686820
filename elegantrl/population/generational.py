"""Generational evolution: all members train a period, then copies of the best replace the worst.

Decisions depend on the scores of a generation, not on the order in which they arrived, so a population that was killed
and resumed has the same lineage as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .config import PopulationConfig
from .events import Evaluated, Event, Exploited, Nominated, Promoted, Spawned
from .fold import Member, PopulationState
from .selection import choose, cut
from .space import Spaces, explored, stream


class Generational:
    """Decides what follows from new events."""

    def __init__(self, config: PopulationConfig, spaces: Spaces) -> None:
        self.config, self.spaces = config, spaces

    def begin(self) -> list[Event]:
        """The first generation."""
        return [Spawned(f"m{i:03}", *self.spaces.start(i)) for i in range(self.config.members)]

    def decide(self, state: PopulationState, news: Sequence[Event], max_running: int) -> list[Event]:
        """Promotions after fresh evaluations, and the selection at the end of a generation."""
        decisions: list[Event] = [
            Promoted(event.member, event.period, event.score)
            for event in news
            if isinstance(event, Evaluated) and event.fresh and event.score is not None
        ]
        if state.new_generation:
            decisions += self.select(state)
        return decisions

    def select(self, state: PopulationState) -> list[Event]:
        """Nominate the best for the leaderboard, and replace the worst by copies of better members."""
        ranked, generation = state.ranked(), state.generation
        best = [member for member in ranked if member.period - 1 in member.runs]
        if generation >= self.config.periods:
            return [Nominated(member.id, member.period - 1) for member in best[: self.config.board]]
        nominated = [Nominated(member.id, member.period - 1) for member in best[:1]]
        return [*nominated, *self.replacements(state.active, best, generation)]

    def replacements(self, active: list[Member], best: list[Member], generation: int) -> list[Event]:
        """A member without a finite score is always replaced, one of the worst only by a better one."""
        number = cut(self.config.fraction, len(active)) if len(active) > 1 else 0
        failed = [member for member in active if not math.isfinite(member.score)]
        worst = best[len(best) - max(0, number - len(failed)) :] if number > len(failed) else []
        events: list[Event] = []
        for member in sorted([*failed, *worst], key=lambda member: member.id) if best else []:
            random = stream(self.config.seed, "exploit", generation, member.id)
            parent = best[choose(self.config, [other.score for other in best], random)]
            if parent.score > member.score or not math.isfinite(member.score):
                hypers = explored(self.config, self.spaces.by_agent[parent.agent], parent.hypers, random)
                origin = parent.runs[parent.period - 1].key
                events.append(Exploited(member.id, generation, parent.id, origin, parent.agent, hypers))
        return events
