"""A policy with memory: CartPole that hides its velocities, which a policy has to infer from what it saw before.

python examples/memory.py
elegantrl train ppo PositionOnlyCartPole-v1 --agent.memory gru     # the training alone
"""

from __future__ import annotations

from typing import Any

import gymnasium

import elegantrl

if __name__ == "__main__":
    run = elegantrl.train("ppo", "PositionOnlyCartPole-v1", memory="gru")
    policy = run.load_policy()
    env = gymnasium.make("PositionOnlyCartPole-v1")
    obs, _ = env.reset(seed=0)
    carry: dict[str, Any] = {}  # empty at the beginning of an episode; ``act`` keeps the state of the memory in it
    total, ended = 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs, carry))
        total, ended = total + float(reward), terminated or truncated
    print(f"an episode with memory: {total:.0f} steps; best return of training {run.best_return:.0f}")
