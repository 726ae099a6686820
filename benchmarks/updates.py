"""What does one update cost? Minibatch, losses, gradients, Adam and targets against others, one thread.

    python benchmarks/updates.py            # everything, a few minutes
    python benchmarks/updates.py td3 redq   # some

Peers get the same sizes, batches, replay contents and cadence of actor and target steps: Stable-Baselines3 by its own
`train()`, called once per block so that its bookkeeping is spread over many updates, and a plain script as CleanRL
writes it (torch modules, torch.optim.Adam, targets moved parameter by parameter). All sides run in this process, in
turn and in short blocks timed by the processor's clock, and all profit from memory that is kept when freed; the median
of the ratios of neighbours in time counts. Results go to results/updates.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from common import Measurement, alternate, environment, show, write_json
from stable_baselines3 import DQN, TD3
from stable_baselines3.common.buffers import ReplayBuffer as PlainReplay
from stable_baselines3.common.logger import Logger
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from elegantrl.data.replay import ReplayBuffer
from elegantrl.execute.settle import keep_freed_memory
from elegantrl.fast.learning import gradients_of
from elegantrl.registry import build_agent, find_agent
from elegantrl.types import ActionSpec, EnvSpec, Rollout

CPU = torch.device("cpu")
ROWS = 100_000
REPEATS = 51
GAMMA, TAU = 0.99, 0.005
HALFCHEETAH = EnvSpec("HalfCheetah-v5", (17,), ActionSpec(dim=6), 1)
CARTPOLE = EnvSpec("CartPole-v1", (4,), ActionSpec(choices=(2,)), 1)
LUNARLANDER = EnvSpec("LunarLander-v3", (8,), ActionSpec(choices=(4,)), 1)

Side = Callable[[], float]


# ---- The same transitions for everybody


def random_rollout(spec: EnvSpec) -> Rollout:
    """One lane of ROWS transitions, one in a hundred of them terminal."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(ROWS, 1, *shape, generator=generator)

    if spec.action.kind == "discrete":
        action = torch.randint(spec.action.num_outputs, (ROWS, 1), generator=generator)
    else:
        action = normal(spec.action.num_outputs).clamp(-1, 1)
    ended = torch.rand(ROWS, 1, generator=generator) < 0.01
    obs, next_obs, reward = normal(spec.obs_dim), normal(spec.obs_dim), normal()
    return Rollout(obs, action, reward, ended, torch.zeros_like(ended), next_obs, reward)


def fill(replay: PlainReplay, rollout: Rollout) -> PlainReplay:
    """What Stable-Baselines3 holds after ROWS calls of its ``add``."""
    replay.observations[:], replay.next_observations[:] = rollout.obs.numpy(), rollout.next_obs.numpy()
    replay.actions[:] = rollout.action.reshape(ROWS, 1, -1).numpy()
    replay.rewards[:], replay.dones[:] = rollout.reward.numpy(), rollout.terminated.numpy()
    replay.full = True
    return replay


def spaces(spec: EnvSpec) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Space[Any]]:
    obs_space = gymnasium.spaces.Box(-np.inf, np.inf, (spec.obs_dim,), np.float32)
    if spec.action.kind == "discrete":
        return obs_space, gymnasium.spaces.Discrete(spec.action.num_outputs)
    return obs_space, gymnasium.spaces.Box(-1.0, 1.0, (spec.action.num_outputs,), np.float32)


class Sized(gymnasium.Env[Any, Any]):
    """An environment that is nothing but its spaces: Stable-Baselines3 asks for one."""

    def __init__(self, spec: EnvSpec):
        self.observation_space, self.action_space = spaces(spec)


# ---- Three ways to take updates


def timed(update: Callable[[int], None], updates: int) -> Side:
    """Updates per second of the processor, in a block: all sides have one thread, and other work may share the core."""

    def run() -> float:
        started = time.process_time()
        update(updates)
        return updates / (time.process_time() - started)

    run()  # warm-up
    return run


def ours(agent_name: str, spec: EnvSpec, batch_size: int, **settings: Any) -> Callable[[int], None]:
    """What the learner does for each update that is due."""
    entry = find_agent(agent_name)
    agent = build_agent(entry, spec, entry.config(batch_size=batch_size, **settings), CPU, seed=0)
    agent.gradients = gradients_of(agent)  # as in a run
    replay, sampler = ReplayBuffer(ROWS, spec, CPU), torch.Generator().manual_seed(1)
    replay.add(random_rollout(spec))

    def update(count: int) -> None:
        for _ in range(count):
            agent.update(replay.sample(batch_size, agent.hypers.gamma, 1, sampler))

    return update


def stable_baselines(kind: type[TD3 | DQN], spec: EnvSpec, batch_size: int, **settings: Any) -> Callable[[int], None]:
    model = kind("MlpPolicy", Sized(spec), buffer_size=ROWS, device="cpu", gamma=GAMMA, tau=TAU, **settings)
    model.set_logger(Logger(None, []))
    assert isinstance(model.replay_buffer, PlainReplay)
    fill(model.replay_buffer, random_rollout(spec))
    return lambda count: model.train(count, batch_size)


def plain_replay(spec: EnvSpec) -> PlainReplay:
    """The replay buffer of single-file scripts is that of Stable-Baselines3."""
    return fill(PlainReplay(ROWS, *spaces(spec), "cpu"), random_rollout(spec))


def plain_mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def follow(target: nn.Module, source: nn.Module) -> None:
    for theirs, own in zip(source.parameters(), target.parameters(), strict=True):
        own.data.copy_(TAU * theirs.data + (1 - TAU) * own.data)


def plain_td3(spec: EnvSpec, batch_size: int, hidden: tuple[int, ...]) -> Callable[[int], None]:
    replay = plain_replay(spec)
    actor = nn.Sequential(*plain_mlp(spec.obs_dim, *hidden, spec.action.num_outputs), nn.Tanh())
    critics = nn.ModuleList(plain_mlp(spec.obs_dim + spec.action.num_outputs, *hidden, 1) for _ in range(2))
    actor_target, critic_targets = deepcopy(actor), deepcopy(critics)
    critic_adam = torch.optim.Adam(critics.parameters(), lr=1e-3)
    actor_adam = torch.optim.Adam(actor.parameters(), lr=1e-3)
    done = 0

    def update(count: int) -> None:
        nonlocal done
        for _ in range(count):
            batch = replay.sample(batch_size)
            with torch.no_grad():
                noise = (0.2 * torch.randn_like(batch.actions)).clamp(-0.5, 0.5)
                next_action = (actor_target(batch.next_observations) + noise).clamp(-1, 1)
                next_input = torch.cat([batch.next_observations, next_action], 1)
                next_q = torch.min(*(critic(next_input) for critic in critic_targets))
                target = batch.rewards + (1 - batch.dones) * GAMMA * next_q
            taken = torch.cat([batch.observations, batch.actions], 1)
            critic_loss = sum(mse_loss(critic(taken), target) for critic in critics)
            critic_adam.zero_grad()
            critic_loss.backward()
            critic_adam.step()
            if done % 2 == 0:
                actor_loss = -critics[0](torch.cat([batch.observations, actor(batch.observations)], 1)).mean()
                actor_adam.zero_grad()
                actor_loss.backward()
                actor_adam.step()
                follow(actor_target, actor)
                follow(critic_targets, critics)
            done += 1

    return update


def plain_dqn(spec: EnvSpec, batch_size: int, hidden: tuple[int, ...]) -> Callable[[int], None]:
    replay = plain_replay(spec)
    net = plain_mlp(spec.obs_dim, *hidden, spec.action.num_outputs)
    net_target = deepcopy(net)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)

    def update(count: int) -> None:
        for _ in range(count):
            batch = replay.sample(batch_size)
            with torch.no_grad():
                next_q = net_target(batch.next_observations).amax(1)
                target = batch.rewards.flatten() + GAMMA * next_q * (1 - batch.dones.flatten())
            q = net(batch.observations).gather(1, batch.actions).squeeze()
            loss = mse_loss(target, q)
            adam.zero_grad()
            loss.backward()
            adam.step()
            follow(net_target, net)

    return update


# ---- Measurements


def td3() -> list[Measurement]:
    """TD3 at HalfCheetah's sizes: batch 256, 256x256, actor and targets at every second update."""
    spec, batch_size, hidden, block = HALFCHEETAH, 256, (256, 256), 20
    sides = [
        timed(ours("td3", spec, batch_size, hidden=hidden), block),
        timed(stable_baselines(TD3, spec, batch_size, policy_kwargs={"net_arch": list(hidden)}), block),
        timed(plain_td3(spec, batch_size, hidden), block),
    ]
    return against_peers("TD3, obs 17, action 6, batch 256, 256x256", sides)


def dqn() -> list[Measurement]:
    """DQN at the sizes of CartPole and LunarLander, targets at every update (Stable-Baselines3: never)."""
    found = []
    for spec, batch_size, hidden in ((CARTPOLE, 128, (128, 128)), (LUNARLANDER, 128, (256, 256))):
        # Stable-Baselines3 clips gradients at 10, so ours does; the plain script does not.
        sides = [
            timed(ours("dqn", spec, batch_size, hidden=hidden, max_grad_norm=10.0), 100),
            timed(stable_baselines(DQN, spec, batch_size, policy_kwargs={"net_arch": list(hidden)}), 100),
            timed(plain_dqn(spec, batch_size, hidden), 100),
        ]
        sizes = f"obs {spec.obs_dim}, {spec.action.num_outputs} actions, batch {batch_size}, {hidden[0]}x{hidden[1]}"
        found += against_peers(f"DQN, {sizes}", sides)
    return found


def against_peers(what: str, sides: list[Side]) -> list[Measurement]:
    our_speed, sb3_speed, plain_speed = alternate(*sides, repeats=REPEATS)
    return [
        Measurement(what, "updates/s", our_speed, sb3_speed, "Stable-Baselines3 train()", ">= 1.2"),
        Measurement(what, "updates/s", our_speed, plain_speed, "plain script", ">= 1.2"),
    ]


def redq() -> list[Measurement]:
    """REDQ with ten critics against SAC with two, as many updates of each, at HalfCheetah's sizes."""
    found = []
    for interval, cadence in ((20, "an actor step per 20 updates"), (1, "an actor step per update, as SAC")):
        sides = [
            timed(ours("redq", HALFCHEETAH, 256, num_critics=10, actor_interval=interval), 10),
            timed(ours("sac", HALFCHEETAH, 256, num_critics=2), 10),
        ]
        ten, two = ([1e6 / speed for speed in speeds] for speeds in alternate(*sides, repeats=REPEATS))
        found.append(Measurement(f"REDQ, 10 critics, {cadence}", "us/update", ten, two, "SAC, 2 critics", "< 4"))
    return found


BENCHMARKS = {f.__name__: f for f in (td3, dqn, redq)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="measurements; all if none is named")
    names = parser.parse_args().names or list(BENCHMARKS)
    torch.set_num_threads(1)
    keep_freed_memory()
    results = show("Updates, one thread", (m for name in names for m in BENCHMARKS[name]()))
    name = "updates.json" if len(names) == len(BENCHMARKS) else f"updates_{'_'.join(names)}.json"
    print(write_json(name, {"environment": environment(), "measurements": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
