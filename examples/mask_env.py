"""An environment of your own in which not every action is allowed at every step.

python examples/mask_env.py                            # train DQN in it, with masks and without
elegantrl train dqn examples.mask_env:Sort             # the same from the command line, in the repository's folder

A mask has a flag for every action, at least one of them true. It is found by itself in one of three places: a method
`action_masks()`, as here, the key "action_mask" of an info, or the key "action_mask" of an observation that is a dict.
`--masks False` leaves it out.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import gymnasium as gym
import numpy as np

import elegantrl

LENGTH = 6
PAIRS = list(combinations(range(LENGTH), 2))


class Sort(gym.Env[Any, Any]):
    """Numbers are to be sorted in as few swaps as possible; a pair that is in order already may not be swapped."""

    observation_space = gym.spaces.MultiDiscrete([LENGTH] * LENGTH)
    action_space = gym.spaces.Discrete(len(PAIRS))
    limit = 30

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.numbers, self.taken = np.arange(LENGTH), 0
        while not self.action_masks().any():
            self.numbers = self.np_random.permutation(LENGTH)
        return self.numbers.copy(), {}

    def action_masks(self) -> Any:
        return np.array([self.numbers[i] > self.numbers[j] for i, j in PAIRS])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        pair = list(PAIRS[int(action)])
        if self.action_masks()[int(action)]:  # without masks a policy may try what is not allowed
            self.numbers[pair] = self.numbers[pair[::-1]]
        is_sorted = not self.action_masks().any()
        return self.numbers.copy(), -1.0, is_sorted, self.taken == self.limit, {}


if __name__ == "__main__":
    elegantrl.check_env(elegantrl.make_env(Sort, 4))
    for masks in (None, False):
        run = elegantrl.train("dqn", Sort, masks=masks, num_envs=8, max_steps=40_000)
        print(f"masks={masks}: best return {run.best_return:.2f}, see {run.run_dir}")
