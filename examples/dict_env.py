"""An environment of your own whose observation has several parts: a picture, a choice and a vector.

python examples/dict_env.py                            # train PPO in it
elegantrl train ppo examples.dict_env:Deliver          # the same from the command line, in the repository's folder

Parts may be Box, Discrete, MultiDiscrete and MultiBinary, in dicts and tuples. Each part gets an encoder of its own,
which the output of a run names; `--agent.encoder` chooses another. Text, graphs and sequences are refused by name.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

import elegantrl

SIZE, MOVES = 5, ((0, 1), (0, -1), (1, 0), (-1, 0))


class Deliver(gym.Env[Any, Any]):
    """A grid with four corners; the choice says which corner to go to, the vector how much time is left."""

    observation_space = gym.spaces.Dict(
        {
            "grid": gym.spaces.Box(0, 1, (SIZE, SIZE), np.bool_),
            "corner": gym.spaces.Discrete(4),
            "time": gym.spaces.Box(0, 1, (1,)),
        }
    )
    action_space = gym.spaces.Discrete(4)
    limit = 20

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.integers(1, SIZE - 1, size=2)
        self.corner, self.taken = int(self.np_random.integers(4)), 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        self.place = np.clip(self.place + MOVES[int(action)], 0, SIZE - 1)
        goal = np.array([self.corner // 2, self.corner % 2]) * (SIZE - 1)
        arrived = bool((self.place == goal).all())
        return self.observe(), 1.0 if arrived else -0.05, arrived, self.taken == self.limit, {}

    def observe(self) -> Any:
        grid = np.zeros((SIZE, SIZE), np.bool_)
        grid[tuple(self.place)] = True
        return {"grid": grid, "corner": self.corner, "time": np.array([1 - self.taken / self.limit], np.float32)}


if __name__ == "__main__":
    elegantrl.check_env(elegantrl.make_env(Deliver, 4))
    run = elegantrl.train("ppo", Deliver, num_envs=16, max_steps=60_000, lr=1e-3)
    print(f"best return {run.best_return:.2f} in {run.summary['wall_seconds']:.0f} s, see {run.run_dir}")
