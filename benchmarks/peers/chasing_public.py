"""PPO of ElegantRL as it is on PyPI until chasers catch their targets: the other side of ../chasing.py.

Needs an environment of its own, because the name is that of this project. Its loop, agent and networks are its own.
Only its evaluator is replaced: the library's own steps 4,096 environments a thousand times for one score.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import torch
from elegantrl.train import run
from torch import Tensor

from elegantrl import Config
from elegantrl.agents import AgentPPO

LIMIT = 300.0
"""Seconds of the processor after which a run is given up."""
LENGTH = 100
"""The longest episode."""


class Chasing:
    """The task ``Chasing`` of this project, with the interface of the public one."""

    def __init__(self, env_num: int) -> None:
        self.env_num = self.num_envs = env_num
        self.device = torch.device("cpu")

    def first(self, num_rows: int) -> Tensor:
        direction, drift = torch.nn.functional.normalize(torch.randn(2, num_rows, 2), dim=2)
        still = torch.zeros(num_rows, 2)
        return torch.cat([0.1 * torch.randn(num_rows, 2), still, 8 * direction, 0.1 * drift], dim=1)

    def reset(self) -> Tensor:
        self.state, self.elapsed = self.first(self.env_num), torch.zeros(self.env_num)
        return self.state

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        chaser, velocity, target, drift = self.state.chunk(4, dim=1)
        before = (target - chaser).norm(dim=1)
        velocity = 0.8 * velocity + 0.08 * action
        chaser, target = chaser + velocity, target + drift
        after = (target - chaser).norm(dim=1)
        reward = before - after - 0.01 * action.square().sum(1)
        self.state = torch.cat([chaser, velocity, target, drift], dim=1)
        self.elapsed += 1
        done = (after < 1) | (self.elapsed >= LENGTH)
        rows = done.nonzero().squeeze(1)
        self.state[rows], self.elapsed[rows] = self.first(len(rows)), 0.0
        return self.state, reward, done, None


class Over(Exception):
    """The policy is good enough, or there is no time left."""


class Watch:
    """In place of the library's evaluator: scores every policy while the clock stands still."""

    total_step = 0

    def __init__(self, cwd: str, env: Any, args: Any, **_: Any) -> None:
        self.bar, self.num_envs = args.bar, args.num_envs
        self.spent = self.wall = 0.0
        self.go_on()

    def go_on(self) -> None:
        self.start, self.clock = time.process_time(), time.perf_counter()

    def evaluate_and_save(self, actor: Any, steps: int, **_: Any) -> None:
        self.spent += time.process_time() - self.start
        self.wall += time.perf_counter() - self.clock
        self.total_step += steps * self.num_envs
        self.score = score(Chasing(1000), actor)
        print(self.total_step, round(self.spent, 2), round(self.score, 3), file=sys.stderr)
        if self.score >= self.bar or self.spent > LIMIT:
            raise Over
        self.go_on()


def score(env: Chasing, actor: Any) -> float:
    """The mean return of the first episode in every lane, without exploration."""
    state, total, goes_on = env.reset(), torch.zeros(env.env_num), torch.ones(env.env_num, dtype=torch.bool)
    for _ in range(LENGTH):
        state, reward, done, _ = env.step(actor(state))
        total += reward * goes_on
        goes_on &= ~done.bool()
        if not goes_on.any():
            break
    return total.mean().item()


def main() -> None:
    num_envs, horizon, batch, epochs = map(int, sys.argv[1:5])
    learning_rate, bar = map(float, sys.argv[5:7])
    seed = int(sys.argv[7])
    watches: list[Watch] = []

    class Kept(Watch):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            watches.append(self)
            super().__init__(*args, **kwargs)

    run.Evaluator = Kept
    env_args = {"env_name": "Chasing", "num_envs": num_envs, "env_num": num_envs, "max_step": LENGTH}
    args = Config(AgentPPO, Chasing, env_args | {"state_dim": 8, "action_dim": 2, "if_discrete": False})
    args.net_dims = [64, 64]
    args.horizon_len, args.batch_size = horizon, batch
    args.repeat_times = epochs * num_envs  # it counts the steps of one environment
    args.learning_rate, args.lambda_entropy, args.ratio_clip = learning_rate, 0.0, 0.2
    args.gamma, args.lambda_gae_adv, args.clip_grad_norm = 0.99, 0.95, 0.5
    args.random_seed, args.num_threads, args.gpu_id = seed, 1, -1
    args.bar = bar
    with tempfile.TemporaryDirectory() as args.cwd:
        try:
            run.train_agent(args)
        except Over:
            watch = watches[0]
    print(
        json.dumps(
            {
                "reached": watch.score >= bar,
                "cpu_seconds": round(watch.spent, 2),
                "wall_seconds": round(watch.wall, 2),
                "steps": watch.total_step,
                "score": round(watch.score, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
