"""Speaker and listener, ``simple_speaker_listener_v4`` of ``mpe2``: same dynamics, observations and rewards.

Axes: N environment lanes, 2 agents, 3 landmarks. A state ends with the colour of the goal and the last message.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...tree import Tree
from ...types import ActionSpec, Leaf, Obs
from .drawing import GREY, Canvas, Color
from .particles import VIEW, Entity, ParticleVecEnv, rows

COLORS: tuple[Color, ...] = ((0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65))
LISTENER = Entity(size=0.075, collides=False, color=GREY)
LANDMARKS = [Entity(size=0.04, collides=False, color=color) for color in COLORS]
NUM_WORDS = 3


class SpeakerListenerVecEnv(ParticleVecEnv):
    """The speaker sees the colour of the goal and says one of three words; the listener hears it and moves.

    Both receive minus the square of the distance between the listener and the goal. The speaker has three options of
    five: the mask forbids it the others, which say nothing. With ``continuous_actions`` it has three numbers, the
    strengths of the words. The speaker has no body, since no agent sees it.
    """

    name = "TensorSpeakerListener"
    num_agents = 2
    agent_names = ("speaker_0", "listener_0")
    num_extra = 3 + NUM_WORDS

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        continuous_actions: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        self.action = ActionSpec(dim=5, sizes=(NUM_WORDS, 5)) if continuous_actions else ActionSpec(choices=(5,))
        seen, mask = Leaf((2, 2 + 2 * len(LANDMARKS) + NUM_WORDS)), Leaf((2, 5), "bool")
        self.obs = seen if continuous_actions else Obs(seen, mask)  # type: ignore[arg-type]
        super().__init__([LISTENER], LANDMARKS, num_envs, device, max_episode_steps)
        listener = self._velocity(0) + self._relative(range(1, 4), 0) + self._extra(range(3, 3 + NUM_WORDS))
        self._show([self._extra(range(3)), listener])
        self._colors_33 = torch.tensor(COLORS, device=self.device)
        self._words_53 = torch.eye(5, NUM_WORDS, device=self.device)
        self._mask = torch.tensor([[option < NUM_WORDS for option in range(5)], [True] * 5], device=self.device)

    def initial(self, num_rows: int) -> Tensor:
        state = super().initial(num_rows)
        goal = torch.randint(3, (num_rows,), generator=self.generator, device=self.device)
        state[:, -self.num_extra : -NUM_WORDS] = self._colors_33[goal]
        return state

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        speaker, listener = action[:, 0], action[:, 1:]
        columns = self._move(state.t().contiguous(), self._pushes(listener))
        color = state[:, -self.num_extra : -NUM_WORDS]
        message = self._words_53[speaker] if self.action.choices else (speaker[:, :NUM_WORDS] + 1) / 2
        place = self.positions(columns)  # [D, E, N]
        square = (place[:, 1:] - place[:, :1]).square().sum(0)  # [3, N]
        reward = -square.gather(0, self.goal(state).unsqueeze(0)).expand(2, -1)
        state = torch.cat([rows(columns), color, message], dim=1)
        return state, rows(reward), torch.zeros_like(reward[0], dtype=torch.bool)

    def goal(self, state: Tensor) -> Tensor:
        """The number of the landmark that is the goal [N]; its colour is the brightest of the three numbers."""
        return state[:, -self.num_extra : -NUM_WORDS].argmax(1)

    def observe(self, state: Tensor) -> Tree:
        seen = super().observe(state)
        return Obs(seen, self._mask.expand(len(state), -1, -1)) if self.action.choices else seen

    def _draw_more(self, canvas: Canvas, columns: Tensor) -> None:
        """A ring around the goal; on the left the goal's colour and below it a bar for each word of the message."""
        goal = int(self.goal(columns.t()))
        x, y = self.positions(columns)[:, 1 + goal, 0].tolist()
        canvas.ring(x, y, 0.1, COLORS[goal])
        canvas.bar(-VIEW + 0.1, VIEW - 0.2, 0.2, 0.2, COLORS[goal])
        for word, strength in enumerate(columns[-NUM_WORDS:, 0].tolist()):
            canvas.bar(-VIEW + 0.1, VIEW - 0.45 - 0.15 * word, 0.05 + 0.4 * strength, 0.1, COLORS[word])
