"""The documented functions that train the run of a ``Config``."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ..config.run import RunConfig
from ..population.results import PopulationResult
from ..runtime.display import RunDisplay
from ..runtime.main_module import main_module_is_guarded
from ..runtime.run import RunResult, run_training
from .config import Config
from .folder import open_folder
from .tournament import train_tournament


def train_agent(args: Config, if_single_process: bool = False) -> RunResult:
    """Train the run of ``args``, with ``num_workers`` above 1 in processes; ``args.cwd`` holds the results."""
    return _train(args, in_processes=args.num_workers > 1 and not if_single_process)


def train_and_evaluate(args: Config) -> RunResult:
    """Train in a single process."""
    return _train(args, in_processes=False)


def train_and_evaluate_mp(args: Config, python_path: str = "") -> RunResult | PopulationResult:
    """Train with workers and evaluator in processes; ``python_path`` is accepted for old scripts and ignored.

    Several groups in ``learner_gpus``, ``[[0], [1]]``, are a tournament with a member for each.
    """
    if (members := args.num_tournament_agents) > 1:
        return train_tournament(args, members)
    return _train(args, in_processes=True)


train_agent_single_process = train_and_evaluate
train_agent_multiprocessing = train_agent_multiprocessing_multi_gpu = train_and_evaluate_mp


def _train(args: Config, in_processes: bool) -> RunResult:
    if (agents := args.num_tournament_agents) > 1:
        warnings.warn(
            f"learner_gpus asks for a tournament of {agents} agents, which train_and_evaluate_mp trains; here one"
            f" agent is trained, with the first group",
            UserWarning,
            stacklevel=3,
        )
    config, (source, eval_source) = args.run_config(), args.sources()
    if in_processes:
        config = _with_workers(config, args.num_workers)
        if not config.execute.num_learners and not main_module_is_guarded():
            warnings.warn(
                "everything runs in this process, because others would repeat the script; write `if __name__ =="
                ' "__main__":` around the call',
                UserWarning,
                stacklevel=3,
            )
            config = replace(config, execute=replace(config.execute, executor="inline"))
    elif config.execute.executor == "auto":
        config = replace(config, execute=replace(config.execute, executor="inline"))
    folder = Path(args.cwd)
    resume = open_folder(folder, bool(args.continue_train), args.if_remove)
    with RunDisplay(config.train.max_steps, Console()) as display:
        return run_training(config, source, folder, resume, display, eval_source=eval_source)


def _with_workers(config: RunConfig, num_workers: int) -> RunConfig:
    """Every worker has ``num_envs`` environments of its own, as documented."""
    groups = math.lcm(num_workers, config.num_learners)
    env = replace(config.env, num_envs=config.env.num_envs * num_workers, num_groups=groups)
    return replace(config, env=env, execute=replace(config.execute, executor="process", num_workers=num_workers))
