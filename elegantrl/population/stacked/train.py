"""``elegantrl.train_population``: a population on one device, from its settings to the folder of each member."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...agents.base import Agent, AgentConfig
from ...config.fields import check_actions
from ...config.resolve import env_name, resolve_config, split_overrides
from ...config.run import RunConfig
from ...devices import pick_device
from ...envs import make_env
from ...envs.tensor import TensorEnv
from ...errors import ConfigError
from ...registry import find_agent
from ...rng import derive_seed, torch_stream
from ...runtime.folder import claim_folder
from ...runtime.run import process_settings
from ...runtime.signals import stop_on_signals
from ...store.best import BestFile
from ...store.files import write_atomic
from ...store.side_files import SideFiles
from ...store.trained import TrainedPolicy
from ...store.untrusted import CONFIG_FILE
from ...types import EnvSpec
from .actor import StackedActor, StackedEvaluator
from .agent import is_finite, policy_rows
from .evolution import evolve, tunables_of
from .learner import StackedLearner

STACKED_FILE = "stacked.json"
USED = {"train": {"seed", "device", "max_steps", "num_threads"}, "eval": {"interval", "episodes", "max_episode_steps"}}
"""The settings of these sections that have an effect; those of agent and environment have all."""


class Standing(NamedTuple):
    """The members at one evaluation."""

    env_steps: int  # of each member
    returns: list[float]  # mean return of each member's episodes; NaN for one that has diverged
    parents: list[int]  # the member that each one copied afterwards, its own number if it stayed
    settings: dict[str, list[float]]  # the tunable settings of each member during the steps before


@dataclass(frozen=True, slots=True)
class StackedResult:
    """What a population has learned, and the folder that holds it."""

    folder: Path
    returns: list[float]
    """Mean return of each member's best policy, on seeds that were not used for its selection."""
    standings: list[Standing] = field(repr=False)

    @property
    def champion(self) -> int:
        """The member with the best policy."""
        return max(range(len(self.returns)), key=lambda p: (not math.isnan(self.returns[p]), self.returns[p]))

    def member_folder(self, member: int) -> Path:
        return self.folder / member_name(member, len(self.returns))

    def load_policy(self, member: int | None = None) -> TrainedPolicy:
        """The best policy of a member, or that of the champion."""
        return TrainedPolicy.load(self.member_folder(self.champion if member is None else member), allow_import=True)


def train_population(
    agent: str | type[Agent],
    env: Any,
    *,
    members: int = 8,
    period_steps: int | None = None,
    replaced: float = 0.25,
    tune: Sequence[str] | None = None,
    run_dir: str | Path | None = None,
    show: Callable[[Standing], object] | None = None,
    **settings: Any,
) -> StackedResult:
    """Train ``members`` agents as one program; ``elegantrl.train_population("ppo", "TensorCartPole", members=16)``.

    ``env`` is a tensor environment. Settings are those of ``elegantrl.train`` for each member: ``num_envs``
    environments, ``max_steps`` steps, and the seeds ``seed``, ``seed + 1``, ... A tunable setting of the agent may be
    a list with a value for each member: ``lr=[1e-4, 1e-3, ...]``.

    With ``period_steps``, members are evaluated after so many steps of each, and the worst ``replaced`` of them become
    copies of the best, with the settings ``tune`` changed at random; None tunes all that have an effect. Without it
    members stay independent and are evaluated every ``eval.interval`` steps. ``show`` is called with each ``Standing``.
    """
    check_arguments(members, period_steps, replaced)
    lists = {
        name: value for name, value in settings.items() if isinstance(value, list | tuple) and is_tunable(agent, name)
    }
    overrides = split_overrides(agent, {name: v for name, v in settings.items() if name not in lists})
    check_overrides(overrides)
    config, _ = resolve_config(agent, env_name(env), overrides)
    configs = member_configs(config, members, lists)
    with process_settings(config), contextlib.ExitStack() as closing:
        population = Population(agent, env, configs)
        folder = closing.enter_context(claim_folder(config, run_dir, resume=False))
        if (folder / STACKED_FILE).exists():
            raise ConfigError(f"{folder} already holds a population; choose another run_dir")
        with stop_on_signals(population.stop):
            population.run(period_steps, replaced, tune, folder, show)
        return population.finish(folder)


def check_arguments(members: int, period_steps: int | None, replaced: float) -> None:
    if members < 1 or (period_steps is not None and members < 2):
        raise ConfigError(f"members={members} is too small: a population has at least one member, two with periods")
    if period_steps is not None and period_steps < 1:
        raise ConfigError(f"period_steps={period_steps} is too small; a period has at least one step")
    if not 0.0 < replaced <= 0.5:
        raise ConfigError(f"replaced={replaced} is out of range: it must be > 0 and <= 0.5")


def is_tunable(agent: str | type[Agent], name: str) -> bool:
    found = find_agent(agent).config.__dataclass_fields__.get(name)
    return found is not None and "tunable" in found.metadata


def check_overrides(overrides: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse settings that have no effect on a stacked population."""
    for section, values in overrides.items():
        for name in values:
            if section not in ("agent", "env") and name not in USED.get(section, ()):
                raise ConfigError(f"{section}.{name} has no effect on a stacked population; leave it out")


def member_configs(config: RunConfig, members: int, lists: Mapping[str, Sequence[float]]) -> list[RunConfig]:
    """The config of each member: its own seed, and its values of the settings that are lists."""
    for name, values in lists.items():
        if len(values) != members:
            raise ConfigError(f"{name} has {len(values)} values for members={members}; give one for each member")
    found = []
    for p in range(members):
        own: dict[str, Any] = {name: float(values[p]) for name, values in lists.items()}
        seed = config.train.seed + p
        found.append(replace(config, agent=replace(config.agent, **own), train=replace(config.train, seed=seed)))
    return found


def member_name(member: int, members: int) -> str:
    return f"member-{member:0{max(2, len(str(members - 1)))}d}"


class Population:
    """The roles of a stacked population, and the loop that drives them."""

    def __init__(self, agent: str | type[Agent], env: Any, configs: Sequence[RunConfig]):
        self.configs, config = configs, configs[0]
        device = pick_device(config.train.device)
        lanes, episodes = config.env.num_envs, config.eval.episodes
        envs = [make_env(env, n * len(configs), device=device, **config.env.arguments) for n in (lanes, episodes)]
        for made in envs:
            if not isinstance(made, TensorEnv):
                raise ConfigError(
                    f"a stacked population needs a tensor environment, and {made.spec.name} is none; train its members"
                    f" as separate runs"
                )
        self.spec: EnvSpec = replace(envs[0].spec, num_envs=lanes)
        check_actions(config.agent, self.spec.action.kind)
        seeds = [each.train.seed for each in configs]
        self.learner = StackedLearner(find_agent(agent), self.agent_configs, self.spec, device, seeds)
        stacked = self.learner.agent
        self.actor = StackedActor(envs[0], stacked, self.learner.members, seeds)  # type: ignore[arg-type]
        self.evaluator = StackedEvaluator(envs[1], stacked, len(configs), config.eval.max_episode_steps)  # type: ignore[arg-type]
        self.generator = torch_stream(config.train.seed, "evolution", device=device)
        self.standings: list[Standing] = []
        self.best = policy_rows(stacked)
        self.best_scores = torch.full((len(configs),), -torch.inf, dtype=torch.float64, device=device)
        self.best_steps = torch.zeros(len(configs), dtype=torch.int64, device=device)
        self.stopped = ""

    @property
    def agent_configs(self) -> list[AgentConfig]:
        return [config.agent for config in self.configs]

    def stop(self, reason: str) -> None:
        """End after the present iteration."""
        self.stopped = reason

    def run(
        self,
        period_steps: int | None,
        replaced: float,
        tune: Sequence[str] | None,
        folder: Path,
        show: Callable[[Standing], object] | None,
    ) -> None:
        """Train to the end of the budget; evaluate, and evolve if there are periods."""
        config, learner, side = self.configs[0], self.learner, SideFiles()
        tunables = tunables_of(self.agent_configs, tune)
        interval = period_steps or config.eval.interval
        last = 0
        while not self.stopped and learner.env_steps < config.train.max_steps:
            learner.update(self.actor.roll_out(config.agent.horizon))
            is_over = learner.env_steps >= config.train.max_steps or bool(self.stopped)
            if learner.env_steps - last < interval and not is_over:
                continue
            last = learner.env_steps
            scores, values = self.score(), {name: getattr(learner.agent.hypers, name).tolist() for name, *_ in tunables}
            parents = torch.arange(len(scores))
            if period_steps is not None and not is_over:
                parents = evolve(learner, scores, tunables, replaced, self.generator)
            self.standings.append(Standing(last, scores.tolist(), parents.tolist(), values))
            side.attempt(STACKED_FILE, lambda: write_standings(folder, self.standings))
            if show is not None:
                show(self.standings[-1])

    def score(self) -> Tensor:
        """The scores [P] of the present policies, NaN for members that diverged; the best policy of each is kept."""
        agent, steps = self.learner.agent, self.learner.env_steps
        policies = policy_rows(agent)
        scores = self.evaluator.scores(policies, self.eval_seed("eval", steps))
        scores = torch.where(is_finite(agent) & policies.isfinite().all(1), scores, torch.nan)
        is_better = scores > self.best_scores
        self.best = torch.where(is_better.unsqueeze(1), policies, self.best)
        self.best_scores = torch.where(is_better, scores, self.best_scores)
        self.best_steps = torch.where(is_better, steps, self.best_steps)
        return scores

    def eval_seed(self, *key: str | int) -> int:
        return derive_seed(self.configs[0].train.seed, *key)

    def finish(self, folder: Path) -> StackedResult:
        """Write the best policy and the config of each member."""
        returns = self.evaluator.scores(self.best, self.eval_seed("final eval")).tolist()
        best_steps = self.best_steps.tolist()
        hypers = {name: value.tolist() for name, value in self.learner.agent.hypers.named_buffers()}
        for p, config in enumerate(self.configs):
            own = folder / member_name(p, len(self.configs))
            own.mkdir(parents=True, exist_ok=True)
            final = replace(config, agent=replace(config.agent, **{name: hypers[name][p] for name in hypers}))
            write_atomic(own / CONFIG_FILE, final.to_yaml().encode())
            files = BestFile(own, self.learner.agent.policy_spec, self.spec, SideFiles())
            files.save(self.best[p], best_steps[p], returns[p])
        result = StackedResult(folder, returns, self.standings)
        write_standings(folder, self.standings, {"returns": returns, "champion": result.champion})
        return result


def write_standings(folder: Path, standings: Sequence[Standing], more: Mapping[str, Any] | None = None) -> None:
    """The evaluations of all members as JSON, in which a NaN is null."""
    rows = [standing._asdict() for standing in standings]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / STACKED_FILE, (json.dumps(plain({"standings": rows, **(more or {})})) + "\n").encode())


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
