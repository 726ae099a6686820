"""What does priority cost? Minibatches of 256 out of a million rows of HalfCheetah's sizes, one thread.

    python benchmarks/replay.py

Prioritised and uniform draws run in this process on equal data, alternating; the median of the ratios of neighbours in
time counts. Before each timed draw a row is added, as in training. Results go to results/replay.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from common import environment, write_json
from rich.console import Console
from rich.table import Table

from elegantrl.data.prioritized import PrioritizedReplay, SumTree
from elegantrl.data.replay import FIELDS, ReplayBuffer
from elegantrl.types import ActionSpec, EnvSpec, Rollout, Transition

CPU = torch.device("cpu")
HALFCHEETAH = EnvSpec("HalfCheetah-v5", (17,), ActionSpec(dim=6), 1)
GAMMA = torch.tensor(0.99)
BAR = 3.0


def random_rollout(num_rows: int, generator: torch.Generator) -> Rollout:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(num_rows, 1, *shape, generator=generator)

    none = torch.zeros(num_rows, 1, dtype=torch.bool)
    return Rollout(normal(17), normal(6).clamp(-1, 1), normal(), none, none, normal(17), normal())


def filled_pair(num_rows: int) -> tuple[ReplayBuffer, PrioritizedReplay]:
    """The same rows in both kinds of buffer, with priorities spread over several orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    uniform = ReplayBuffer(num_rows, HALFCHEETAH, CPU)
    prioritized = PrioritizedReplay(num_rows, HALFCHEETAH, CPU, 0.6, 0.4)
    for _ in range(10):
        rollout = random_rollout(num_rows // 10, generator)
        uniform.add(rollout)
        prioritized.add(rollout)
    assert all(torch.equal(getattr(uniform, name), getattr(prioritized, name)) for name in FIELDS)
    errors = torch.randn(num_rows, generator=generator).exp()
    prioritized.update_priorities(torch.arange(num_rows), errors)
    return uniform, prioritized


class Timer:
    """Adds up seconds of the parts of a loop, so that preparation between them does not count."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], Transition | None]) -> Transition | None:
        started = time.perf_counter()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        return result


def measure(num_rows: int, batch_size: int, n_step: int, draws: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds per call of each part, one value per repeat; all parts take turns within a repeat."""
    uniform, prioritized = filled_pair(num_rows)
    generator = torch.Generator().manual_seed(1)
    row = random_rollout(1, generator)
    values: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        timer = Timer()
        for _ in range(draws):
            timer("uniform_add", lambda: uniform.add(row))
            timer("uniform_sample", lambda: uniform.sample(batch_size, GAMMA, n_step, generator))
            timer("add", lambda: prioritized.add(row))
            batch = timer("sample", lambda: prioritized.sample(batch_size, GAMMA, n_step, generator))
            assert batch is not None and batch.rows is not None
            index, error = batch.rows, batch.reward
            timer("update_priorities", lambda index=index, error=error: prioritized.update_priorities(index, error))
        if repeat:  # the first one warms up
            for name, seconds in timer.seconds.items():
                values.setdefault(name, []).append(seconds / draws * 1e6)
    return values


def drift(num_leaves: int, batch_size: int, updates: int) -> float:
    """How far the root is from the sum of the leaves after many updates, relative to it."""
    tree, generator = SumTree(num_leaves, CPU), torch.Generator().manual_seed(2)
    for _ in range(updates):
        index = torch.randint(num_leaves, (batch_size,), generator=generator)
        tree.update(index, torch.randn(batch_size, generator=generator).mul_(4).exp_())
    exact = tree.leaves.double().sum()
    return float((tree.root - exact).abs() / exact)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--draws", type=int, default=200, help="per repeat")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    results = {}
    table = Table("n-step", "part", "microseconds: median (range)")
    for n_step in (1, 3):
        values = measure(args.rows, args.batch_size, n_step, args.draws, args.repeats)
        for name, measured in values.items():
            spread = f"{statistics.median(measured):,.0f} ({min(measured):,.0f} - {max(measured):,.0f})"
            table.add_row(str(n_step), name, spread)
        pairs = list(zip(values["sample"], values["update_priorities"], values["uniform_sample"], strict=True))
        ratio = statistics.median(sample / base for sample, _, base in pairs)
        cycle_ratio = statistics.median((sample + update) / base for sample, update, base in pairs)
        results[f"n_step_{n_step}"] = {"sample_ratio": ratio, "sample_and_update_ratio": cycle_ratio, "us": values}
    console.print(table)
    for name, found in results.items():
        console.print(
            f"{name}: prioritised / uniform sampling {found['sample_ratio']:.2f} (bar: <= {BAR:g}), "
            f"with update_priorities {found['sample_and_update_ratio']:.2f}"
        )
    relative = drift(args.rows, args.batch_size, 10_000)
    console.print(f"root against the sum of leaves after 10,000 updates of {args.batch_size}: {relative:.1e} relative")
    data = {"environment": environment(), "bar": BAR, "rows": args.rows, "batch_size": args.batch_size}
    path = write_json("replay.json", data | {"results": results, "relative_drift": relative})
    console.print(f"written: {path}")


if __name__ == "__main__":
    main()
