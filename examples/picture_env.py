"""An environment of your own that shows pictures: a policy sees several frames at once and so how things move.

python examples/picture_env.py                                            # train PPO in it
elegantrl train ppo examples.picture_env:Catch --frame-stack 2            # the same from the command line

Pictures are arrays of uint8 or bool with two axes or more. They keep their type from here to the replay buffer, and are
scaled where the network reads them. `elegantrl train ppo ALE/Pong-v5` works in the same way.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

import elegantrl

SIZE = 10


class Catch(gym.Env[Any, Any]):
    """A ball falls aslant, and a bat on the last row must be below it. One picture does not show where it goes."""

    observation_space = gym.spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
    action_space = gym.spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.bat = 0, SIZE // 2
        self.column = int(self.np_random.integers(SIZE))
        self.drift = int(self.np_random.choice([-1, 1]))
        return self.picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.bat = min(max(self.bat + int(action) - 1, 0), SIZE - 1)
        if not 0 <= self.column + self.drift < SIZE:
            self.drift = -self.drift
        self.row, self.column = self.row + 1, self.column + self.drift
        over = self.row == SIZE - 1
        return self.picture(), float(over and self.bat == self.column), over, False, {}

    def picture(self) -> Any:
        picture = np.zeros((SIZE, SIZE), np.uint8)
        picture[SIZE - 1, self.bat] = 128
        picture[self.row, self.column] = 255
        return picture


if __name__ == "__main__":
    elegantrl.check_env(elegantrl.make_env(Catch, 4, frame_stack=2))
    run = elegantrl.train("ppo", Catch, frame_stack=2, num_envs=16, max_steps=60_000, lr=1e-3)
    print(f"caught {run.best_return:.0%} in {run.summary['wall_seconds']:.0f} s, see {run.run_dir}")
