"""From measured figures to many machines: bytes per second, calls per second, and what saturates first.

    python benchmarks/scale_arithmetic.py
    python benchmarks/scale_arithmetic.py --call-us 210 --results-per-second 5000

Nothing is measured here. The defaults of the ceilings are Ray's published ones (release/perf_metrics, 64 cores); give
those of your machine, from benchmarks/ray_scaling.py and benchmarks/population.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import tyro


@dataclass(frozen=True)
class Figures:
    """What one worker makes, and what one process, one network and one store can take."""

    steps_per_second: float = 2000.0
    """Environment steps of one worker, with its policy."""
    step_bytes: float = 288.0
    """Bytes of one transition: 60 observations, 8 actions and 4 scalars of 4 bytes."""
    fragment_steps: float = 8192.0
    """Steps that a worker sends at once: 16 environments for 512 steps."""
    weights_bytes: float = 2.2e6
    """Bytes of a policy: three layers of 512."""
    state_bytes: float = 20e6
    """Bytes of a commit without replay memory."""
    versions_per_second: float = 1.0
    """New weights of each learner."""
    commit_seconds: float = 60.0
    """Time between commits of one agent."""
    period_seconds: float = 60.0
    """Time between two results of one member of a population."""
    workers_per_node: int = 32
    """Workers on one machine."""
    call_us: float = 137.0
    """Time of the supervisor for one call of a remote role."""
    calls_per_fragment: float = 3.0
    """Calls, waits and releases for each fragment."""
    network_bytes: float = 1.25e9
    """Bytes per second that the machine of a learner sends and, at the same time, receives: 10 Gbit/s."""
    store_bytes: float = 1e9
    """Bytes per second that the store takes from the whole cluster."""
    results_per_second: float = 5000.0
    """Results that the controller of a population takes."""


class Load(NamedTuple):
    """What a layout asks for, and the share of each ceiling that it uses."""

    steps: float
    into_learner: float
    weights: float
    commits: float
    results: float
    shares: dict[str, float]


def load(figures: Figures, agents: int, workers: int) -> Load:
    """The load of ``agents`` that run at a time, each with ``workers``."""
    steps = workers * figures.steps_per_second
    into_learner = steps * figures.step_bytes
    calls = steps / figures.fragment_steps * figures.calls_per_fragment
    nodes = -(-workers // figures.workers_per_node)  # each node of an agent gets one copy of its weights
    sent = nodes * figures.weights_bytes * figures.versions_per_second
    commits = agents * figures.state_bytes / figures.commit_seconds
    results = agents / figures.period_seconds if agents > 1 else 0.0
    shares = {
        "supervisor": calls * figures.call_us / 1e6,
        "network of a learner": max(into_learner, sent) / figures.network_bytes,
        "store": commits / figures.store_bytes,
        "controller": results / figures.results_per_second,
    }
    return Load(agents * steps, into_learner, agents * sent, commits, results, shares)


LAYOUTS = ((1, 32), (1, 1000), (100, 10), (1000, 5), (1000, 32), (5000, 32))
"""(agents at a time, workers of each)."""


def main(figures: Figures) -> None:
    print(
        "| agents x workers | nodes | steps/s | into a learner | weights, all | commits | results/s | saturates first |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for agents, workers in LAYOUTS:
        x = load(figures, agents, workers)
        first = max(x.shares, key=lambda name: x.shares[name])
        nodes = -(-agents * workers // figures.workers_per_node)
        print(
            f"| {agents:,} x {workers:,} | {nodes:,} | {x.steps / 1e6:,.2f} M | {x.into_learner / 1e6:,.1f} MB/s"
            f" | {x.weights / 1e6:,.0f} MB/s | {x.commits / 1e6:,.1f} MB/s | {x.results:,.1f}"
            f" | {first}, {x.shares[first]:.0%} |"
        )


if __name__ == "__main__":
    main(tyro.cli(Figures))
