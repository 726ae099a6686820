"""What does learning for a team cost? One thread.

    python benchmarks/teams.py

MADDPG stacks the networks of all agents. `maddpg_update_cost` compares an update of three agents (minibatch, losses,
gradients, Adam, targets) with that of a team of one whose agent has the same observations, actions and network. Both
sides run in this process, in turn and in short blocks timed by the processor's clock; the median of the ratios of
neighbours in time counts.

`mappo_worlds` compares the steps of MAPPO per second, learning included, on 1024 copies of TensorSpread with those on
8 copies of the original, `mpe2:simple_spread_v3`: the same network (64x64 for the policy and for the central value),
epochs and minibatches per epoch. Both are runs by the public entry point without evaluations and commits on the way,
inline, in turn, in seconds of the processor; the first rollout is not counted.

Results go to results/teams.json.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import Measurement, alternate, environment, show, write_json

from elegantrl.data.replay import ReplayBuffer
from elegantrl.execute.settle import keep_freed_memory
from elegantrl.fast.learning import gradients_of
from elegantrl.registry import build_agent, find_agent
from elegantrl.runtime.callback import Event
from elegantrl.runtime.train import train
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Rollout

CPU = torch.device("cpu")
ROWS = 20_000
OBS, OPTIONS = 18, 5
"""Of an agent of TensorSpread with three agents."""
BATCH, HIDDEN = 512, (64, 64)
"""Those of the tuned settings."""
UPDATES, REPEATS = 5, 41
EPOCHS, MINIBATCHES, RUNS = 5, 4, 9
"""Of MAPPO: epochs of its recipes, minibatches per epoch, repeats."""

Side = Callable[[], float]


def random_rollout(spec: EnvSpec) -> Rollout:
    """One lane of ROWS transitions."""
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, ROWS, 1, *spec.obs.shape, generator=generator)
    reward = torch.randn(ROWS, 1, *spec.team, generator=generator)
    never = torch.zeros(ROWS, 1, dtype=torch.bool)
    return Rollout(obs, spec.action.random((ROWS, 1, *spec.team), generator), reward, never, never, next_obs)


def updates(agent_name: str, num_agents: int, action: ActionSpec) -> Side:
    """Processor time of an update in microseconds."""
    spec = EnvSpec("Team", Leaf((num_agents, OBS)), action, 1, num_agents=num_agents)
    entry = find_agent(agent_name)
    agent = build_agent(entry, spec, entry.config(batch_size=BATCH, hidden=HIDDEN), CPU, seed=0)
    agent.gradients = gradients_of(agent)  # as in a run
    replay, sampler = ReplayBuffer(ROWS, spec, CPU), torch.Generator().manual_seed(1)
    replay.add(random_rollout(spec))

    def run() -> float:
        started = time.process_time()
        for _ in range(UPDATES):
            agent.update(replay.sample(BATCH, agent.hypers.gamma, 1, sampler))
        return 1e6 * (time.process_time() - started) / UPDATES

    run()  # warm-up
    return run


def maddpg_update_cost() -> list[Measurement]:
    """Three agents against one, discrete and continuous."""
    found = []
    for action in (ActionSpec(choices=(OPTIONS,)), ActionSpec(dim=OPTIONS)):
        for name in ("maddpg", "matd3"):
            three, one = alternate(*(updates(name, count, action) for count in (3, 1)), repeats=REPEATS)
            what = f"{name}, 3 agents, {action.kind} actions, batch {BATCH}, {HIDDEN[0]}x{HIDDEN[1]}"
            found.append(Measurement(what, "us/update", three, one, "1 agent", "< 2" if name == "maddpg" else "none"))
    return found


def mappo_speed(env: str, num_envs: int, horizon: int, rollouts: int) -> float:
    """Steps per second of processor time; log lines from the first rollout on give the time."""
    rollout = num_envs * horizon
    times: list[tuple[int, float]] = []

    def note(event: Event) -> None:
        if event.kind == "log":
            times.append((event.env_steps, time.process_time()))

    with tempfile.TemporaryDirectory() as folder:
        train(
            "mappo", env, run_dir=Path(folder) / "run", verbose=False, callback=note, executor="inline",
            num_envs=num_envs, horizon=horizon, batch_size=rollout // MINIBATCHES, num_epochs=EPOCHS, hidden=HIDDEN,
            max_steps=rollouts * rollout, target_return=float("inf"),
            eval={"interval": 10**12, "episodes": 1}, checkpoint={"interval": 10**12},
        )  # fmt: skip
    (first_step, first), (last_step, last) = times[0], times[-1]
    return (last_step - first_step) / (last - first)


def mappo_worlds() -> list[Measurement]:
    """1024 tensor worlds against 8 original ones, rollouts of the lengths of their recipes."""
    ours, reference = alternate(
        lambda: mappo_speed("TensorSpread", 1024, 25, rollouts=6),
        lambda: mappo_speed("mpe2:simple_spread_v3", 8, 200, rollouts=4),
        repeats=RUNS,
    )
    what = f"mappo, TensorSpread, 1024 envs, {EPOCHS} epochs, {HIDDEN[0]}x{HIDDEN[1]}, learning included"
    return [Measurement(what, "steps/s", ours, reference, "itself on 8 envs of mpe2:simple_spread_v3", ">= 20")]


def main() -> int:
    torch.set_num_threads(1)
    keep_freed_memory()
    results = show("Teams, one thread", (*mappo_worlds(), *maddpg_update_cost()))
    print(write_json("teams.json", {"environment": environment(), "measurements": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
