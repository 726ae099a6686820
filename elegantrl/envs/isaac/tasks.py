"""Tasks by name: those that mjlab registers, and those that Isaac Lab registers with Gymnasium."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium as gym
import torch

from ...errors import ConfigError, SpecError
from ..hints import suggest

CFG_KEY = "env_cfg_entry_point"
"""Isaac Lab keeps the configuration of a task under this keyword argument of its id."""


def make_mjlab_task(name: str, num_envs: int, device: torch.device | str, settings: Mapping[str, Any]) -> Any:
    """The environment of ``mjlab:TASK``; ``settings`` are fields of its configuration.

    It does not reset lanes by itself, so that the last observation of an episode is known.
    """
    task = name.removeprefix("mjlab:")
    try:
        import_module("warp").config.quiet = True  # or it prints every kernel that it loads
        import_module("mjlab.tasks")
        registry, envs = import_module("mjlab.tasks.registry"), import_module("mjlab.envs")
    except ImportError as error:
        raise ConfigError(f"environment {name!r} needs mjlab: pip install 'elegantrl[mjlab]' ({error})") from error
    if task not in (known := registry.list_tasks()):
        raise SpecError(f"unknown task of mjlab {task!r}; {suggest(task, known, 'mjlab lists them: list-envs')}")
    cfg = registry.load_env_cfg(task)
    cfg.scene.num_envs, cfg.auto_reset = num_envs, False
    set_fields(cfg, settings, name)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints tables about the task
        return envs.ManagerBasedRlEnv(cfg, device=str(device))


def is_lab_id(spec: Any) -> bool:
    """Whether an id of Gymnasium is one of Isaac Lab."""
    return CFG_KEY in (spec.kwargs or {})


def make_lab_task(spec: Any, num_envs: int, device: torch.device | str, settings: Mapping[str, Any]) -> Any:
    """The environment of an id of Isaac Lab; ``settings`` are fields of its configuration."""
    entry = spec.kwargs[CFG_KEY]
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        entry = getattr(import_module(module), attribute)
    cfg = entry() if callable(entry) else entry
    cfg.scene.num_envs, cfg.sim.device = num_envs, str(device)
    set_fields(cfg, settings, spec.id)
    return gym.make(spec, cfg=cfg, disable_env_checker=True)


def set_fields(cfg: Any, settings: Mapping[str, Any], name: str) -> None:
    """Set fields of a configuration, with dots between levels: ``sim.mujoco.timestep``."""
    for path, value in settings.items():
        *parents, field = path.split(".")
        owner = cfg
        for parent in parents:
            owner = getattr(owner, parent, None)
        if not hasattr(owner, field):
            known = sorted(key for key in vars(cfg) if not key.startswith("_"))
            raise ConfigError(f"environment {name!r}: its configuration has no field {path!r}; it has {known}")
        setattr(owner, field, value)
