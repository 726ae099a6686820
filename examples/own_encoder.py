"""An encoder of your own: any module that turns observations into features.

python examples/own_encoder.py
elegantrl train ppo examples.own_encoder:Hunt --agent.encoder examples.own_encoder:Offsets   # the same
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import elegantrl
from elegantrl.envs.tensor import TensorEnv
from elegantrl.types import ActionSpec, Leaf

SIDE = 9


class Hunt(TensorEnv):
    """A picture with a hunter (channel 0) and its prey (channel 1), which does not move; a step costs 0.1."""

    obs = Leaf((2, SIDE, SIDE), "uint8")
    action = ActionSpec(choices=(4,))
    max_episode_steps = 40

    def initial(self, num_rows: int) -> Tensor:
        return torch.randint(SIDE, (num_rows, 4), generator=self.generator, device=self.device)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]], device=self.device)
        hunter, prey = (state[:, :2] + moves[action]).clamp(0, SIDE - 1), state[:, 2:]
        caught = (hunter == prey).all(1)
        return torch.cat([hunter, prey], 1), caught.float() - 0.1, caught

    def observe(self, state: Tensor) -> Tensor:
        return one_hot(state[:, ::2] * SIDE + state[:, 1::2], SIDE**2).view(-1, 2, SIDE, SIDE).byte() * 255


class Offsets(nn.Module):
    """Where the brightest pixel of each channel is. ``leaf`` says shape and type of the observation."""

    def __init__(self, leaf: Leaf):
        super().__init__()
        channels, _, self.width = leaf.shape
        self.layer = nn.Linear(2 * channels, 32)

    def forward(self, picture: Tensor) -> Tensor:  # [B, C, H, W] uint8 -> features [B, 32]
        place = picture.flatten(2).argmax(2)
        row_and_column = torch.cat([place // self.width, place % self.width], 1)
        return self.layer(row_and_column.float() / self.width).relu()  # type: ignore[no-any-return]


if __name__ == "__main__":
    run = elegantrl.train("ppo", Hunt, encoder=Offsets, num_envs=64, batch_size=1024, lr=1e-3, max_steps=100_000)
    print(f"best return {run.best_return:.2f} in {run.summary['wall_seconds']:.0f} s, see {run.run_dir}")
