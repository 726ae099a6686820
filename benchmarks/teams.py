"""What does learning for a team cost? One thread.

    python benchmarks/teams.py

MADDPG stacks the networks of all agents. `maddpg_update_cost` compares an update of three agents (minibatch, losses,
gradients, Adam, targets) with that of a team of one whose agent has the same observations, actions and network. Both
sides run in this process, in turn and in short blocks timed by the processor's clock; the median of the ratios of
neighbours in time counts. Results go to results/teams.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from common import Measurement, alternate, environment, show, write_json

from elegantrl.data.replay import ReplayBuffer
from elegantrl.execute.settle import keep_freed_memory
from elegantrl.fast.learning import gradients_of
from elegantrl.registry import build_agent, find_agent
from elegantrl.types import ActionSpec, EnvSpec, Leaf, Rollout

CPU = torch.device("cpu")
ROWS = 20_000
OBS, OPTIONS = 18, 5
"""Of an agent of TensorSpread with three agents."""
BATCH, HIDDEN = 512, (64, 64)
"""Those of the tuned settings."""
UPDATES, REPEATS = 5, 41

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


def main() -> int:
    torch.set_num_threads(1)
    keep_freed_memory()
    results = show("Teams, one thread", maddpg_update_cost())
    print(write_json("teams.json", {"environment": environment(), "measurements": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
