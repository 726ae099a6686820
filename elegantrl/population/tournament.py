"""Tournament-based ensemble training: no barrier; every new member starts from a run of the leaderboard.

The orchestrator keeps ``max_running`` members in the training pool, the generator chooses a parent for each new one,
and the updater evaluates a good run again, on fresh seeds, before it enters the leaderboard.
"""

from __future__ import annotations

from collections.abc import Sequence

from .config import PopulationConfig
from .events import Evaluated, Event, Nominated, Promoted, Spawned
from .fold import PopulationState
from .selection import choose
from .space import Spaces, explored, stream


class Tournament:
    """Decides what follows from new events."""

    def __init__(self, config: PopulationConfig, spaces: Spaces) -> None:
        self.config, self.spaces = config, spaces

    def begin(self) -> list[Event]:
        """The first members, from scratch: all of them are evaluated, however few run at the same time."""
        return [Spawned(f"m{i:03}", *self.spaces.start(i)) for i in range(self.config.members)]

    def decide(self, state: PopulationState, news: Sequence[Event], max_running: int) -> list[Event]:
        """Nominations and promotions; when these have been applied, new members."""
        updates = [event for result in news if isinstance(result, Evaluated) for event in self.update(state, result)]
        return updates or self.generate(state, max_running)

    def update(self, state: PopulationState, result: Evaluated) -> list[Event]:
        """Where a run that was evaluated goes: to a second evaluation, onto the leaderboard, or nowhere."""
        score = result.score
        if score is None or not self.ranks(state, score):
            return []
        if result.fresh:
            return [Promoted(result.member, result.period, score)]
        return [Nominated(result.member, result.period)]

    def ranks(self, state: PopulationState, score: float) -> bool:
        """Whether a score is good enough for the leaderboard."""
        return len(state.board) < self.config.board or score > state.board[-1].score

    def generate(self, state: PopulationState, max_running: int) -> list[Event]:
        """New members for the free places of the training pool; a run that is evaluated again takes a place too.

        There are none before the first result: if all first members fail, others would fail too.
        """
        if not state.num_results:
            return []
        first, free = len(state.members), max_running - len(state.due)
        last = min(first + max(0, free), self.config.num_trainings)
        return [self.spawn(state, number) for number in range(first, last)]

    def spawn(self, state: PopulationState, number: int) -> Event:
        """A member that starts from the leaderboard, or from scratch while that is empty."""
        name = f"m{number:03}"
        if not state.board:
            return Spawned(name, *self.spaces.start(number))
        random = stream(self.config.seed, "spawn", number)
        parent = state.board[choose(self.config, [entry.score for entry in state.board], random)]
        run = parent.run
        hypers = explored(self.config, self.spaces.by_agent[run.agent], run.hypers, random)
        return Spawned(name, run.agent, hypers, parent.member, run.key)
