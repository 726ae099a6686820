"""How fast? Steps and updates per second against Stable-Baselines3 and against raw limits, one thread each.

    python benchmarks/throughput.py                 # everything, a few minutes
    python benchmarks/throughput.py ppo_cartpole    # one measurement

Both sides of a ratio run in this process, alternating, on the same environment, network, epochs and minibatches; the
median of the repeats counts and the spread is shown. Results go to results/throughput.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch
from common import Measurement, alternate, environment, show, write_json

from elegantrl.envs import make_env
from elegantrl.execute.settle import keep_freed_memory
from elegantrl.nets.networks import NetSpec
from elegantrl.nets.policies import PolicySpec
from elegantrl.roles.group import GroupActor
from elegantrl.runtime.train import train
from elegantrl.types import Weights


def our_steps_per_second(agent: str, env: str, steps: int, **settings: Any) -> float:
    """Training proper by the public entry point: no evaluation but one short one at the end, no commits on the way."""
    with tempfile.TemporaryDirectory() as folder:
        settings |= {"eval": {"interval": 10**12, "episodes": 1}, "checkpoint": {"interval": 10**12}}
        target = float("inf")
        settings = {"verbose": False, "max_steps": steps, "target_return": target, **settings}
        run = train(agent, env, run_dir=Path(folder) / "run", **settings)
    return float(run.summary["steps_per_second"])


# ---- against Stable-Baselines3


def sb3_ppo(num_envs: int, n_steps: int, batch_size: int, n_epochs: int, activation: type, steps: int) -> float:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", num_envs), n_steps=n_steps, batch_size=batch_size,
                n_epochs=n_epochs, policy_kwargs={"activation_fn": activation}, device="cpu")  # fmt: skip
    model.learn(n_steps * num_envs)  # warm-up
    started = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps / (time.perf_counter() - started)


def ppo_cartpole() -> list[Measurement]:
    """PPO on CartPole-v1: 8 environments, 64x64 tanh, 32 steps, 20 epochs, one minibatch of 256."""
    steps = 8 * 1024

    def ours() -> float:
        shape = {"num_envs": 8, "horizon": 32, "batch_size": 256, "num_epochs": 20}
        return our_steps_per_second("ppo", "CartPole-v1", steps, hidden=(64, 64), activation="tanh", **shape)

    def reference() -> float:
        return sb3_ppo(8, 32, 256, 20, torch.nn.Tanh, steps)

    our_speed, their_speed = alternate(ours, reference, repeats=9)
    name = "PPO CartPole-v1, 8 envs"
    return [Measurement(name, "steps/s", our_speed, their_speed, "Stable-Baselines3", ">= 2")]


def sac_halfcheetah() -> list[Measurement]:
    """SAC on HalfCheetah-v5: batch 256, 256x256, one update per step."""
    updates, warm_up = 600, 300

    def ours() -> float:
        shape = {"num_envs": 1, "horizon": 1, "batch_size": 256, "hidden": (256, 256), "learning_starts": warm_up}
        speed = our_steps_per_second("sac", "HalfCheetah-v5", warm_up + updates, **shape, buffer_size=100_000)
        return speed * updates / (warm_up + updates)  # the warm-up counts as time, not as updates

    def reference() -> float:
        from stable_baselines3 import SAC

        model = SAC("MlpPolicy", "HalfCheetah-v5", learning_starts=warm_up, buffer_size=100_000, device="cpu")
        started = time.perf_counter()
        model.learn(warm_up + updates)
        return updates / (time.perf_counter() - started)

    our_speed, their_speed = alternate(ours, reference, repeats=5)
    name = "SAC HalfCheetah-v5, 1 update per step"
    return [Measurement(name, "updates/s", our_speed, their_speed, "Stable-Baselines3", ">= 1.2")]


def ppo_tensor_cartpole() -> list[Measurement]:
    """PPO on 4096 tensor CartPoles against the best that 64 environments give Stable-Baselines3, equal epochs."""
    measurements = []
    for epochs, bar in ((1, ">= 10"), (4, "-")):

        def ours(epochs: int = epochs) -> float:
            shape = {"num_envs": 4096, "horizon": 32, "batch_size": 16384, "num_epochs": epochs}
            return our_steps_per_second("ppo", "TensorCartPole", 131072 * 4, **shape, activation="relu")

        # What serves Stable-Baselines3 best is searched: rollout length and minibatch size.
        shapes = [(32, 1024), (32, 2048), (128, 4096), (128, 8192)]
        found = {s: sb3_ppo(64, *s, epochs, torch.nn.ReLU, 32768) for s in shapes}
        best = max(found, key=lambda s: found[s])

        def reference(best: tuple[int, int] = best, epochs: int = epochs) -> float:
            return sb3_ppo(64, *best, epochs, torch.nn.ReLU, 65536)

        our_speed, their_speed = alternate(ours, reference, repeats=3)
        reference_name = f"Stable-Baselines3, 64 envs x {best[0]}, batch {best[1]}"
        name = f"PPO tensor CartPole, 4096 envs, 64x64 relu, {epochs} epoch{'s' * (epochs > 1)}"
        measurements.append(Measurement(name, "steps/s", our_speed, their_speed, reference_name, bar))
    return measurements


# ---- against raw limits


def collecting() -> list[Measurement]:
    """Collecting without learning against the sum of raw environment time and raw forward time.

    Ours is all that a worker does: act, step, keep the rows, log-probabilities, returns of finished episodes. The raw
    environment is Gymnasium's own in a plain loop with its resets, by its vector entry point where it has one, on the
    actions that the policy took. The raw forward is the way from an observation to an action as a user would write it:
    an ``nn.Sequential`` in inference mode, then ``torch.multinomial`` or ``torch.normal``; no log-probability, and one
    observation that stays in the cache. The bar is held to the sum of these two, each timed in its own loop, and to
    the same without the sampling, which is the least that "forward" can mean, though collecting needs more.

    A third reference calls environment and forward in turn, as collecting must: each finds the caches full of the
    other, so that this is slower than the sum.

    Seconds are those of the processor: one thread does all of it, and what others run on the machine does not count.
    """
    measurements = []
    for env_id, num_envs in (
        ("CartPole-v1", 8), ("CartPole-v1", 64), ("LunarLander-v3", 8), ("HalfCheetah-v5", 8), ("TensorCartPole", 4096),
    ):  # fmt: skip
        worker, weights = _worker(env_id, num_envs)
        # The raw environments take the actions that the policy took: their cost depends on where they lead.
        actions = list(torch.cat([worker.sample(weights, 64, 0).rollout.action for _ in range(2)]))
        step = _raw_step(env_id, num_envs, worker, actions)
        network, forward = _raw_forward(worker)

        def collect(w: GroupActor = worker, weights: Weights = weights) -> float:
            started = time.process_time()
            for seq in range(4):
                w.sample(weights, 32, seq)
            return time.process_time() - started

        @torch.inference_mode()
        def seconds(*calls: Callable[[int], Any]) -> float:
            started = time.process_time()
            for t in range(128):
                for call in calls:
                    call(t)
            return time.process_time() - started

        calls = ((step,), (forward,), (network,), (forward, step))
        values = alternate(collect, *(partial(seconds, *c) for c in calls), repeats=41)
        ours, env_speed, forward_speed, network_speed, in_turn = ([128 * num_envs / v for v in side] for side in values)
        name = f"collecting {env_id}, {num_envs} envs"
        for reference, bar, speed in (
            ("raw env + raw forward, each alone", ">= 0.8", _both(env_speed, forward_speed)),
            ("the same without sampling", ">= 0.8", _both(env_speed, network_speed)),
            ("raw env and raw forward in turn", "-", in_turn),
        ):
            measurements.append(Measurement(name, "steps/s", ours, speed, reference, bar))
        worker.close()
    return measurements


def _both(first: list[float], second: list[float]) -> list[float]:
    """Steps per second of doing one after the other."""
    return [1 / (1 / a + 1 / b) for a, b in zip(first, second, strict=True)]


def _worker(env_id: str, num_envs: int) -> tuple[GroupActor, Weights]:
    env = make_env(env_id, num_envs)
    kind = "categorical" if env.spec.action.kind == "discrete" else "gaussian"
    worker = GroupActor(env, PolicySpec(kind, env.spec.obs, env.spec.action, NetSpec(activation="tanh")), seed=0)
    return worker, Weights(0, worker.policy.flat.clone())


def _raw_step(env_id: str, num_envs: int, worker: GroupActor, actions: list[Any]) -> Callable[[int], None]:
    """The t-th vector step of the bare environments."""
    if env_id.startswith("Tensor"):
        env = make_env(env_id, num_envs)
        env.reset(0)

        def step(t: int) -> None:
            env.step(actions[t % len(actions)])
    elif env_id == "CartPole-v1":
        vector = gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point")
        vector.reset(seed=0)
        arrays = [action.numpy() for action in actions]

        def step(t: int) -> None:
            vector.step(arrays[t % len(arrays)])
    else:
        lanes = [gymnasium.make(env_id, disable_env_checker=True) for _ in range(num_envs)]
        for seed, lane in enumerate(lanes):
            lane.reset(seed=seed)
        discrete = worker.env.spec.action.kind == "discrete"
        choices = [list(action.numpy()) if discrete else list(action.clamp(-1, 1).numpy()) for action in actions]

        def step(t: int) -> None:
            for lane, choice in zip(lanes, choices[t % len(choices)], strict=True):
                _, _, terminated, truncated, _ = lane.step(choice)
                if terminated or truncated:
                    lane.reset()

    return step


def _raw_forward(worker: GroupActor) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """The network on one observation, and the way from there to an action."""
    spec, obs, nn = worker.env.spec, worker.obs, torch.nn
    hidden = (nn.Linear(spec.obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    net = nn.Sequential(*hidden, nn.Linear(64, spec.action.num_outputs))
    log_std = torch.zeros(spec.action.num_outputs)

    def network(_: int) -> torch.Tensor:
        return net(obs)

    def choice(_: int) -> torch.Tensor:
        return torch.multinomial(net(obs).softmax(-1), 1).squeeze(-1)

    def numbers(_: int) -> torch.Tensor:
        return torch.normal(net(obs), log_std.exp())

    return network, choice if spec.action.kind == "discrete" else numbers


def replay_memory() -> list[Measurement]:
    """Memory of a replay buffer with a million transitions of HalfCheetah's size against its raw bytes."""
    # In a process of its own: this one holds freed memory that a new buffer would reuse.
    code = (
        "import torch; from elegantrl.data.replay import ReplayBuffer; from elegantrl.types import *;"
        "rss = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096;"
        "spec = EnvSpec('x', (17,), ActionSpec(dim=6), 1); torch.ones(9).sum(); before = rss();"
        "replay = ReplayBuffer(1_000_000, spec, torch.device('cpu'));"
        "[getattr(replay, n).zero_() for n in ('obs', 'next_obs', 'action', 'reward', 'terminated', 'truncated')];"
        "print(rss() - before)"
    )
    used = float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    raw = 1_000_000 * (4 * (17 + 17 + 6 + 1) + 2)  # observation, successor, action, reward as float32; two flags
    return [Measurement("replay of 1M HalfCheetah transitions", "bytes", [used], [raw], "raw bytes", "<= 1.3")]


BENCHMARKS = {f.__name__: f for f in (ppo_cartpole, sac_halfcheetah, ppo_tensor_cartpole, collecting, replay_memory)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="measurements; all if none is named")
    names = parser.parse_args().names or list(BENCHMARKS)
    torch.set_num_threads(1)
    keep_freed_memory()
    results = show("Throughput, one thread", (m for name in names for m in BENCHMARKS[name]()))
    name = "throughput.json" if len(names) == len(BENCHMARKS) else f"throughput_{'_'.join(names)}.json"
    print(write_json(name, {"environment": environment(), "measurements": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
