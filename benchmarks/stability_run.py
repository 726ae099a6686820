"""The tasks of stability.py, and one training run of ours or of Stable-Baselines3, scored by the same function.

    python benchmarks/stability_run.py ours Hopper-v5 --seed 100

prints the run as JSON. Both sides get the settings of `TASKS`: the same network, loss weights, optimiser, number of
environments and rollout. Where values are normalised, each library does it in its own way: ours scales the targets of
the value network, Stable-Baselines3 scales rewards (`VecNormalize`). Advantages are normalised over each minibatch, as
Stable-Baselines3 does it; our default, over the whole rollout, is `ours_rollout`. Actions are in [-1, 1] on both sides.

The clocks count training, that is from the first environment step on, without the evaluations: seconds of the wall, and
of the processor, which other work on the machine does not lengthen. One process and one thread of torch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import gymnasium
import numpy as np
import torch

Act = Callable[[np.ndarray], np.ndarray]
"""The best known actions [N, ...] of a policy for observations [N, ...], both in the units of the environment."""
EVALUATIONS = 10
EPISODES_ON_THE_WAY = 10
EPISODES_AT_THE_END = 20


class Task(NamedTuple):
    """Settings in one vocabulary; what is not here is equal by default (clip 0.2, gradients of norm 0.5, Adam)."""

    env: str
    budget: int
    """Environment steps: ten times a whole number of rollouts."""
    threshold: float
    """Return that counts as learned."""
    floor: float
    """Return of random actions, mean of 30 episodes: scores averaged over tasks are 0 there and 1 at the threshold."""
    source: str
    envs: int
    steps: int
    """Of each environment between updates."""
    batch: int
    epochs: int
    lr: float
    gamma: float
    gae_lambda: float
    entropy: float = 0.0
    falling_lr: int | None = None
    """Steps over which the learning rate falls to zero."""
    normalize_obs: bool = False
    normalize_value: bool = False


HIDDEN = (64, 64)
VALUE_COEF = 0.5
"""Weight of the mean square error of values. Our `value_coef` is that of half of it."""
TASKS = {
    task.env: task
    for task in [
        Task("CartPole-v1", 25_600, 475, 24, "RL Zoo, with a constant clip", envs=8, steps=32, batch=256, epochs=20,
             lr=1e-3, gamma=0.98, gae_lambda=0.8, falling_lr=100_000),
        Task("Acrobot-v1", 30_720, -100, -490, "ours", envs=4, steps=128, batch=128, epochs=4, lr=5e-4, gamma=0.99,
             gae_lambda=0.94, entropy=0.01),
        Task("Pendulum-v1", 40_960, -200, -1240, "RL Zoo, without state-dependent noise", envs=4, steps=1024, batch=64,
             epochs=10, lr=1e-3, gamma=0.9, gae_lambda=0.95),
        Task("LunarLander-v3", 122_880, 200, -220, "RL Zoo (environments, entropy), own (the rest)", envs=16, steps=256,
             batch=256, epochs=10, lr=1e-3, gamma=0.99, gae_lambda=0.95, entropy=0.01, normalize_value=True),
        Task("Hopper-v5", 81_920, 1000, 20, "ours", envs=8, steps=256, batch=64, epochs=10, lr=3e-4, gamma=0.995,
             gae_lambda=0.98, normalize_value=True),
        Task("InvertedDoublePendulum-v5", 61_440, 1000, 48, "ours, with log_std_init 0", envs=8, steps=256, batch=64,
             epochs=10, lr=3e-4, gamma=0.99, gae_lambda=0.95, normalize_obs=True, normalize_value=True),
    ]
}  # fmt: skip
H_TERM_TASKS = {
    task.env: task
    for task in [
        Task("InvertedPendulum-v5", 20_480, 950, 5, "ours, with log_std_init 0", envs=8, steps=256, batch=64, epochs=10,
             lr=3e-4, gamma=0.99, gae_lambda=0.95, normalize_obs=True, normalize_value=True),
        Task("Reacher-v5", 81_920, -10, -43, "ours, with log_std_init 0", envs=8, steps=256, batch=64, epochs=10,
             lr=3e-4, gamma=0.99, gae_lambda=0.95, normalize_obs=True, normalize_value=True),
        Task("Swimmer-v5", 81_920, 40, 0, "ours, with log_std_init 0", envs=8, steps=256, batch=64, epochs=10,
             lr=3e-4, gamma=0.99, gae_lambda=0.95, normalize_obs=True, normalize_value=True),
        Task("HalfCheetah-v5", 81_920, 1000, -280, "ours, with log_std_init 0", envs=8, steps=256, batch=64, epochs=10,
             lr=3e-4, gamma=0.99, gae_lambda=0.95, normalize_obs=True, normalize_value=True),
        Task("Walker2d-v5", 81_920, 500, 0, "ours, with log_std_init 0", envs=8, steps=256, batch=64, epochs=10,
             lr=3e-4, gamma=0.99, gae_lambda=0.95, normalize_obs=True, normalize_value=True),
    ]
}  # fmt: skip


VARIANTS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours_rollout": {"normalize_advantage_over": "rollout"},
    "ours_h": {"h_term": True},
}
"""What ours has besides the settings of a task."""


class Over(Exception):
    """The budget is spent."""


class Watch:
    """Scores the policy at fixed steps and keeps the clock of training."""

    def __init__(self, task: Task, seed: int):
        self.task, self.seed = task, seed
        self.steps: list[int] = []
        self.returns: list[float] = []
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.final: list[float] = []
        self.clock: tuple[float, float] | None = None
        self.wall = self.cpu = 0.0

    def start(self) -> None:
        self.clock = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        assert self.clock is not None
        self.wall += time.perf_counter() - self.clock[0]
        self.cpu += time.process_time() - self.clock[1]

    def see(self, steps: int, make_act: Callable[[], Act]) -> None:
        """After an update: score the policy if it is time, and end the run with the budget."""
        due = self.task.budget * (len(self.steps) + 1) // EVALUATIONS
        if steps < due:
            return
        self.stop()
        is_last = len(self.steps) + 1 == EVALUATIONS
        # No seed is that of another run or another evaluation of this one.
        seeds = np.random.SeedSequence([self.seed, len(self.steps)]).generate_state(EPISODES_AT_THE_END)
        episodes = EPISODES_AT_THE_END if is_last else EPISODES_ON_THE_WAY
        returns = play(self.task.env, make_act(), seeds[:episodes].tolist())
        self.steps.append(steps)
        self.returns.append(float(np.mean(returns)))
        self.seconds.append(round(self.wall, 3))
        self.cpu_seconds.append(round(self.cpu, 3))
        if is_last:
            self.final = returns
            raise Over
        self.start()

    def report(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "returns": [round(value, 3) for value in self.returns],
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "episodes": [round(value, 3) for value in self.final],
            "load": round(os.getloadavg()[0], 2),
        }


def play(env: str, act: Act, seeds: list[int]) -> list[float]:
    """Returns of an episode for each seed, without exploration; all are played at once."""
    games = [gymnasium.make(env) for _ in seeds]
    obs = np.stack([game.reset(seed=seed)[0] for game, seed in zip(games, seeds, strict=True)])
    totals, running = [0.0] * len(seeds), set(range(len(seeds)))
    while running:
        actions = act(obs)
        for index in list(running):
            obs[index], reward, terminated, truncated, _ = games[index].step(actions[index])
            totals[index] += float(reward)
            if terminated or truncated:
                running.remove(index)
    for game in games:
        game.close()
    return totals


# ---- ours


def train_ours(task: Task, seed: int, watch: Watch, agent: dict[str, Any]) -> None:
    """What `elegantrl train ppo` does in one process, with its log files and commits."""
    from elegantrl.envs.spaces import ActionCodec
    from elegantrl.nets.policies.spec import FlatPolicy
    from elegantrl.runtime import build
    from elegantrl.runtime.progress import Silent
    from elegantrl.runtime.supervisor import Supervisor
    from elegantrl.runtime.train import prepare
    from elegantrl.runtime.training import Steps
    from elegantrl.types import Fragment

    space = gymnasium.make(task.env).action_space

    class Watched(Supervisor):
        def collect(self) -> Steps[list[Fragment]]:
            if self.progress.env_steps == 0:
                watch.start()
            return (yield from super().collect())

        def learn(self, fragments: list[Fragment]) -> Steps[None]:
            yield from super().learn(fragments)
            watch.see(self.progress.env_steps, self.make_act)

        def make_act(self) -> Act:
            assert self.weights is not None
            policy = FlatPolicy(self.learners.policy_spec, torch.device("cpu")).load(self.weights.flat)

            @torch.inference_mode()
            def act(obs: np.ndarray) -> np.ndarray:
                best, _ = policy.act(torch.as_tensor(obs, dtype=torch.float32), policy.initial_carry(len(obs)))
                return ActionCodec(task.env, space, len(obs)).decode(best)

            return act

    plan = prepare("ppo", task.env, ours(task, seed, agent))
    with patch.object(build, "Supervisor", Watched), tempfile.TemporaryDirectory() as folder:
        plan.run(Path(folder) / "run", resume=False, display=Silent())


def ours(task: Task, seed: int, agent: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of a task in our words; every one that a tuned setting could change is named."""
    falling = {} if task.falling_lr is None else {"schedule_steps": task.falling_lr}
    settings = {
        "horizon": task.steps, "batch_size": task.batch, "num_epochs": task.epochs, "lr": task.lr, "gamma": task.gamma,
        "gae_lambda": task.gae_lambda, "entropy_coef": task.entropy, "value_coef": 2 * VALUE_COEF, "hidden": HIDDEN,
        "activation": "tanh", "normalize_advantage_over": "minibatch", "normalize_obs": task.normalize_obs,
        "normalize_value": task.normalize_value, **falling,
        "lr_schedule": "constant" if task.falling_lr is None else "linear",
    }  # fmt: skip
    if isinstance(gymnasium.make(task.env).action_space, gymnasium.spaces.Box):
        settings["log_std_init"] = 0.0
    return {
        "env": {"num_envs": task.envs, "num_groups": 1},
        "agent": settings | agent,
        "train": {"seed": seed, "max_steps": task.budget, "target_return": math.inf},
        "execute": {"executor": "inline"},
        "eval": {"interval": task.budget},
    }


# ---- Stable-Baselines3


def train_sb3(task: Task, seed: int, watch: Watch) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Watched(PPO):
        def train(self) -> None:
            super().train()
            watch.see(self.num_timesteps, lambda: self.best)

        def best(self, obs: np.ndarray) -> np.ndarray:
            seen = self.env.normalize_obs(obs) if isinstance(self.env, VecNormalize) else obs
            action, _ = self.predict(seen, deterministic=True)  # clipped to the bounds
            return action if scale is None else action * scale

    def make() -> gymnasium.Env[Any, Any]:
        env = gymnasium.make(task.env)
        return env if scale is None else gymnasium.wrappers.RescaleAction(env, np.float32(-1), np.float32(1))

    space = gymnasium.make(task.env).action_space
    scale = space.high if isinstance(space, gymnasium.spaces.Box) else None
    assert scale is None or np.array_equal(space.low, -scale)
    envs: Any = DummyVecEnv([make] * task.envs)
    if task.normalize_obs or task.normalize_value:
        envs = VecNormalize(envs, norm_obs=task.normalize_obs, norm_reward=task.normalize_value, gamma=task.gamma)
    model = Watched(
        "MlpPolicy", envs, n_steps=task.steps, batch_size=task.batch, n_epochs=task.epochs, learning_rate=task.lr,
        gamma=task.gamma, gae_lambda=task.gae_lambda, clip_range=0.2, ent_coef=task.entropy, vf_coef=VALUE_COEF,
        max_grad_norm=0.5, seed=seed, device="cpu",
        policy_kwargs={"net_arch": list(HIDDEN), "activation_fn": torch.nn.Tanh, "log_std_init": 0.0},
    )  # fmt: skip
    if task.falling_lr is not None:
        total = task.falling_lr
        model.lr_schedule = lambda _: task.lr * max(0.0, 1 - model.num_timesteps / total)
    watch.start()
    model.learn(task.budget)


# ---- one run


@contextmanager
def until_over() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, Over) and not isinstance(error.__cause__, Over):
            raise


def run(system: str, task: Task, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    watch = Watch(task, seed)
    with until_over():
        if system == "sb3":
            train_sb3(task, seed, watch)
        else:
            train_ours(task, seed, watch, VARIANTS[system])
    if not watch.final:
        raise SystemExit(f"{system} on {task.env} with seed {seed} was stopped before its budget was spent")
    return watch.report()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("system", choices=(*VARIANTS, "sb3"))
    parser.add_argument("env", choices=list(TASKS | H_TERM_TASKS))
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--budget", type=int, help="environment steps, instead of the task's")
    args = parser.parse_args()
    task = (TASKS | H_TERM_TASKS)[args.env]
    print(json.dumps(run(args.system, task._replace(budget=args.budget or task.budget), args.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
