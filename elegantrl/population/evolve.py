"""``elegantrl.evolve``: a population on an environment, for Python callers and for the command line."""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.fields import used_fields
from ..config.names import check_names
from ..config.resolve import env_name
from ..config.structure import build_section
from ..devices import pick_device
from ..envs import make_env
from ..errors import ConfigError, RoleError, SpecError
from ..execute.base import Executor, make_executor
from ..runtime.build import PRELOAD
from ..runtime.display import Stdout
from ..runtime.layout import is_instance
from ..runtime.main_module import main_module_is_guarded
from ..runtime.run import process_settings
from ..runtime.signals import resize_on_signals, stop_on_signals
from ..store.files import storage_error
from ..store.storage import Storage, open_storage
from ..types import EnvSpec
from .config import PopulationConfig
from .controller import Controller, Watcher, default_executor
from .display import PopulationDisplay, Quiet, place_of, show_results
from .log import PopulationLog, has_population
from .results import PopulationResult, write_results
from .space import base_config, default_period_steps

FITTING: dict[str, tuple[str, ...]] = {
    "discrete": ("ppo", "d3qn", "a2c"),
    "multi_discrete": ("ppo", "dqn", "a2c"),
    "continuous": ("ppo", "sac", "td3"),
    "team discrete": ("mappo", "qmix", "ippo"),
    "team multi_discrete": ("mappo", "ippo"),
    "team continuous": ("mappo", "matd3", "ippo"),
}
"""Agents of a population by the kind of actions, if the caller names none."""


def evolve(
    env: Any,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    verbose: bool = True,
    watcher: Watcher | None = None,
    **settings: Any,
) -> PopulationResult:
    """Train a population; ``elegantrl.evolve("CartPole-v1", members=4, mode="generational", seed=1)``.

    ``env`` is an id, a class or a callable. ``run_dir`` is a folder, or an address such as ``s3://bucket/name``; by
    default a new folder under ``runs/``. Further settings are those of ``PopulationConfig``.

    Progress and the leaderboard are printed unless ``verbose=False``; a ``watcher`` of your own replaces them.
    """
    check_names(settings, [f.name for f in used_fields(PopulationConfig) if f.name != "env"])
    config = build_section(PopulationConfig, {"env": env_name(env), **settings})
    return run_population(config, env, run_dir, resume, verbose, watcher)


def run_population(
    config: PopulationConfig,
    source: Any,
    run_dir: str | Path | None = None,
    resume: bool = False,
    verbose: bool = True,
    watcher: Watcher | None = None,
) -> PopulationResult:
    """Complete the settings, train, and write the results."""
    config = completed(config, source)
    console = Stdout() if verbose and watcher is None else None
    watcher = watcher or (PopulationDisplay(console) if console else Quiet())
    with claimed(config, run_dir, resume) as storage, contextlib.ExitStack() as closing:
        log, state = PopulationLog(storage), None
        if resume:
            state = log.resume(config)
            watcher.message(place_of(state))
        executor = build_executor(config, source)
        closing.callback(executor.close)
        pick_device(base_config(config, config.agents[0]).train.device, executor.assigns_devices)
        if not executor.isolates:
            closing.enter_context(process_settings(base_config(config, config.agents[0])))
        if state is None:
            log.begin(config)
            storage.write("population.yaml", config.to_yaml().encode())
            watcher.message(header_of(config, type(executor).__name__))
        controller = Controller(config, storage, executor, watcher, source, state)
        with resize_on_signals(controller.request_running), stop_on_signals(controller.request_stop):
            reason = controller.run()
        state = controller.state
        if reason == "complete" and not state.board:
            reason = state.retired[0].reason if state.retired else "all diverged; lower the learning rates"
            raise RoleError(f"no member could be trained to the end: {reason}")
        summary = write_results(storage, state, reason)
    if console is not None:
        show_results(console, storage.url, summary)
    return PopulationResult(storage.url, state, summary)


def completed(config: PopulationConfig, source: Any) -> PopulationConfig:
    """``config`` with agents that fit the environment, and with a length of the periods."""
    if is_instance(source):
        raise ConfigError(
            f"an instance of {type(source).__name__} cannot be shared out among members; pass an id, a class or a"
            f" function that makes it"
        )
    if not config.agents:
        config = replace(config, agents=fitting_agents(config, source))
    for agent in config.agents:
        base_config(config, agent)  # refuses a setting before anything is written
    if config.period_steps is None and config.period_seconds is None:
        config = replace(config, period_steps=default_period_steps(config))
    return config


def fitting_agents(config: PopulationConfig, source: Any) -> tuple[str, ...]:
    """Agents of several algorithms for the spaces of an environment."""
    env = make_env(source, 1, device="cpu", **config.env_kwargs)
    spec: EnvSpec = env.spec
    env.close()
    kind = f"{'' if spec.num_agents is None else 'team '}{spec.action.kind}"
    if kind not in FITTING:
        raise SpecError(f"no agents are known for {kind} actions of {spec.name}; name some with --agents")
    return FITTING[kind]


def build_executor(config: PopulationConfig, source: Any) -> Executor:
    """The executor on which members are trained."""
    try:
        pickle.dumps(source)
        can_be_sent = main_module_is_guarded()
    except Exception:  # a lambda, a class inside a function
        can_be_sent = False
    preload = (*PRELOAD, "elegantrl.population.member")
    return make_executor(default_executor(config, can_be_sent), preload, config.address)


@contextlib.contextmanager
def claimed(config: PopulationConfig, run_dir: str | Path | None, resume: bool) -> Iterator[Storage]:
    """The storage of a population, locked; a new folder under ``runs/`` if none is named."""
    if run_dir is None and resume:
        raise ConfigError("there is nothing to resume without a folder; name it with --run-dir")
    storage = open_storage(new_folder(config) if run_dir is None else run_dir)
    if not resume and has_population(storage):
        raise ConfigError(f"{storage.url} already holds a population; add --resume or choose another --run-dir")
    if resume and not has_population(storage):
        PopulationLog(storage).resume(config)  # raises before a folder is made
    storage.lock()
    try:
        yield storage
    finally:
        storage.close()


def new_folder(config: PopulationConfig) -> Path:
    """A folder that did not exist before."""
    name = re.sub(r"[^\w.+-]", "-", f"evolve_{config.env.strip('<>')}_seed{config.seed}")[:150]
    number = 1
    while True:
        folder = Path("runs") / (name if number == 1 else f"{name}_{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise storage_error("making the population folder", error, folder.parent, 0) from error


def header_of(config: PopulationConfig, executor: str) -> str:
    """One line: mode, environment, agents and size."""
    length = f"{config.period_steps:,} steps" if config.period_steps else f"{config.period_seconds:g} seconds"
    pods = f" of {config.pods} pods" if config.pods > 1 else ""
    return (
        f"{config.mode} population on {config.env}, seed {config.seed}: {config.members} members{pods}"
        f" ({', '.join(config.agents)}), {config.num_trainings} periods of {length} in total, {executor}"
    )
