"""BipedalWalkerHardcore-v3: walk over stumps, pits and stairs. An attempt for hours, not for minutes.

python examples/bipedal_hardcore.py --max-steps 5000000     # train SAC; a step is a decision and lasts three frames
elegantrl eval runs/hardcore --episodes 100 --import        # scores on the task as it is, with the reward of -100

Two things make the task learnable in reasonable time. An action is held for three frames, as in Atari, so that a
mistake is followed by its consequence sooner. And in training a fall ends the episode without the reward of -100, which
makes a policy afraid of obstacles before it can learn to cross them. Evaluations count every frame and that reward.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym

import elegantrl

FALLEN = -100


class Hardcore(gym.Wrapper[Any, Any, Any, Any]):
    """The task with actions that are held for ``repeat`` frames and another reward for a fall."""

    def __init__(self, repeat: int = 3, fall_reward: float = FALLEN, max_frames: int = 2000):
        super().__init__(gym.make("BipedalWalkerHardcore-v3", max_episode_steps=max_frames))
        self.repeat, self.fall_reward = repeat, fall_reward

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += self.fall_reward if reward == FALLEN else float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--max-steps", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", default="runs/hardcore")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    run = elegantrl.train(
        "sac", Hardcore, seed=args.seed, run_dir=args.run_dir, resume=args.resume, max_steps=args.max_steps,
        num_envs=8, env_kwargs={"fall_reward": 0.0, "max_frames": 1200}, horizon=8, updates_per_step=0.2,
        batch_size=256, hidden=(128, 128), lr=7e-4, lr_schedule="linear", schedule_steps=args.max_steps, gamma=0.99,
        n_step=4, tau=0.005, layer_norm=True, target_critics="mean", target_entropy_per_dim=-0.5,
        buffer_size=1_000_000, learning_starts=20_000, warm_up_hold=4, target_return=300.0,
        eval={"interval": 200_000, "episodes": 20, "env_kwargs": {"fall_reward": FALLEN, "max_frames": 2000}},
    )  # fmt: skip
    print(f"best return {run.best_return:.1f}, see {run.run_dir}")


if __name__ == "__main__":
    main()
