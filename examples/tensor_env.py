"""An environment of your own as tensor operations: thousands of lanes, no loop over them, CPU or GPU.

python examples/tensor_env.py                         # train PPO in it
elegantrl train ppo examples.tensor_env:Reach         # the same from the command line, in the repository's folder
"""

from __future__ import annotations

import torch
from torch import Tensor

import elegantrl
from elegantrl.envs.tensor import TensorEnv
from elegantrl.types import ActionSpec


class Reach(TensorEnv):
    """A point mass in the plane must stop at the origin; leaving the box ends the episode."""

    obs_dim = 4
    action = ActionSpec(dim=2)
    max_episode_steps = 40

    def initial(self, num_rows: int) -> Tensor:
        position = torch.rand(num_rows, 2, generator=self.generator, device=self.device) * 2 - 1
        return torch.cat([position, torch.zeros_like(position)], dim=1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, velocity = state.chunk(2, dim=1)
        velocity = 0.8 * velocity + 0.2 * action
        position = position + 0.3 * velocity
        escaped = position.abs().amax(1) > 3
        reward = -position.square().sum(1) - 0.01 * action.square().sum(1) - 5.0 * escaped
        return torch.cat([position, velocity], dim=1), reward, escaped


if __name__ == "__main__":
    elegantrl.check_env(Reach(num_envs=8))
    run = elegantrl.train("ppo", Reach, num_envs=256, horizon=40, batch_size=2048, lr=1e-3, max_steps=300_000)
    print(f"best return {run.best_return:.2f} in {run.summary['wall_seconds']:.0f} s, see {run.run_dir}")
