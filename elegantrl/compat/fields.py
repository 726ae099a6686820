"""The documented settings: their places in a ``RunConfig``, their older names, and the class that holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any, NamedTuple

from ..errors import ConfigError, did_you_mean

MAX_STEPS = 10**12 - 1  # the largest step that a commit can be named after


class UnknownField(ConfigError, AttributeError):
    """A misspelt attribute: an AttributeError for Python, a wrong setting for the user."""


Convert = Callable[[Any, Any], Any]
"""A function of a value and the ``Config`` it was set on that returns the value here."""


def _same(value: Any, _: Any) -> Any:
    return value


class Field(NamedTuple):
    """The place of a documented setting here: the first of ``paths`` that the agent has."""

    paths: tuple[str, ...]
    to_ours: Convert = _same
    to_theirs: Convert = _same


def _whole(value: Any, _: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _steps(value: Any, _: Any) -> Any:
    return MAX_STEPS if value == math.inf else _whole(value, _)


def _split_horizon(steps: int, args: Any) -> int:
    # The documents count the steps of one environment, so a rollout has the same size on any number of lanes.
    return steps if args.lanes_are_chosen else math.ceil(steps / args.num_envs)


def _join_horizon(steps: int, args: Any) -> int:
    return steps if args.lanes_are_chosen else steps * int(args.num_envs)


FIELDS = {
    "gamma": Field(("agent.gamma",)),
    "reward_scale": Field(("agent.reward_scale",)),
    "net_dims": Field(("agent.hidden",), lambda dims, _: tuple(dims), lambda dims, _: list(dims)),
    "learning_rate": Field(("agent.lr",)),
    "clip_grad_norm": Field(("agent.max_grad_norm",)),
    "state_value_tau": Field(("agent.normalize_obs",), lambda tau, _: tau > 0, lambda on, _: float(on)),
    "soft_update_tau": Field(("agent.tau",)),
    "batch_size": Field(("agent.batch_size",), _whole),
    "horizon_len": Field(("agent.horizon",), _split_horizon, _join_horizon),
    "buffer_size": Field(("agent.buffer_size",), _whole),
    "buffer_init_size": Field(("agent.learning_starts",), _whole),
    "repeat_times": Field(("agent.num_epochs", "agent.updates_per_step"), _whole),
    "if_use_v_trace": Field(("agent.vtrace",)),
    "ratio_clip": Field(("agent.clip",)),
    "lambda_gae_adv": Field(("agent.gae_lambda",)),
    "lambda_entropy": Field(("agent.entropy_coef",)),
    "explore_rate": Field(("agent.epsilon_end",)),
    "explore_noise_std": Field(("agent.noise_std",)),
    "policy_noise_std": Field(("agent.smooth_std",)),
    "if_use_per": Field(("agent.prioritized",)),
    "per_alpha": Field(("agent.priority_alpha",)),
    "per_beta": Field(("agent.priority_beta",)),
    "if_use_dueling": Field(("agent.dueling",)),
    "num_ensembles": Field(("agent.num_critics",)),
    "update_freq": Field(("agent.actor_interval",)),
    "target_entropy": Field(
        ("agent.target_entropy_per_dim",),
        lambda total, args: total / args.action_dim,
        lambda per_dim, args: per_dim * args.action_dim,
    ),
    "num_envs": Field(("env.num_envs",)),
    "random_seed": Field(("train.seed",)),
    "num_threads": Field(("train.num_threads",)),
    "break_step": Field(("train.max_steps",), _steps),
    "target_return": Field(("train.target_return",)),
    "eval_times": Field(("eval.episodes",), _whole),
    "eval_per_step": Field(("eval.interval",), _whole),
}

FOR_ALL = {"soft_update_tau", "buffer_size", "buffer_init_size"}
"""Set by the documents for every agent, whether it has a target network and a replay buffer or not."""

HANDLED: dict[str, Any] = {
    "net_dim": None,
    "num_layer": None,
    "if_per_or_gae": None,
    "if_allow_break": True,
    "continue_train": False,
    "if_remove": False,
    "gpu_id": -1,
    "num_workers": 1,
    "learner_gpu_ids": (),
    "eval_env_class": None,
    "eval_env_args": None,
}
"""Settings that ``Config`` itself uses, with their defaults."""

UNUSED: dict[str, Any] = {
    "if_build_vec_env": True,
    "if_keep_save": True,
    "if_over_write": True,
    "if_save_buffer": True,
    "if_use_old_traj": False,
    "save_gap": None,
    "eval_gap": None,
    "eval_times2": None,
    "eval_record_step": 0,
}
"""Accepted without effect, since a run does the same by default; see docs/migration.md."""

REFUSED: dict[str, tuple[Any, str]] = {
    "lambda_fit_cum_r": (0, "critics learn from temporal differences alone"),
    "criterion": (None, "each agent's loss is fixed"),
    "critic_tau": (None, "there is one target rate, soft_update_tau"),
    "ensemble_gap": (None, "there is no tournament in this interface"),
    "save_dir": (None, "there is no tournament in this interface; a run's folder is cwd"),
}
"""The only accepted value, and the reason."""

ALIASES = {
    "target_step": "horizon_len",
    "env_num": "num_envs",
    "max_memo": "buffer_size",
    "worker_num": "num_workers",
    "thread_num": "num_threads",
    "learner_gpus": "learner_gpu_ids",
    "break_score": "target_return",
    "if_use_vtrace": "if_use_v_trace",
    "if_overwrite": "if_over_write",
    "explore_noise": "explore_noise_std",
    "eval_times1": "eval_times",
    "eval_env_func": "eval_env_class",
}

NAMES = {*FIELDS, *HANDLED, *UNUSED, *REFUSED, *ALIASES}


def field_name(name: str, others: Set[str] = frozenset()) -> str:
    """The canonical name of a documented setting; ``others`` are further names worth suggesting."""
    if name not in NAMES:
        # The most likely mistake is the order of words, as in clip_ratio, which a comparison of letters misses.
        swapped = [known for known in NAMES if sorted(known.split("_")) == sorted(name.split("_"))]
        hint = f"did you mean {swapped[0]!r}?" if swapped else did_you_mean(name, NAMES | others)
        raise UnknownField(f"there is no setting {name}; {hint}")
    return ALIASES.get(name, name)


class Settings:
    """Attributes by documented name: aliases are resolved, a misspelt name is an error, unset names have no value."""

    _values: dict[str, Any]

    def __init__(self) -> None:
        self._values = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in self._properties():
            object.__setattr__(self, name, value)
        else:
            self._put(field_name(name, self._properties()), value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and unpickling read attributes before there are values
            raise AttributeError(name)
        name = field_name(name, self._properties())
        return self._values[name] if name in self._values else self._unset(name)

    def _put(self, name: str, value: Any) -> None:
        if name in REFUSED:
            accepted, reason = REFUSED[name]
            if value != accepted:
                raise ConfigError(f"{name}={value!r} is not available: {reason}; remove the line")
        # The width that is set last counts, under either name.
        for rival in {"net_dim": ("net_dims",), "net_dims": ("net_dim", "num_layer")}.get(name, ()):
            self._values.pop(rival, None)
        if value is None:  # means "choose automatically" in the documents
            self._values.pop(name, None)
        else:
            self._values[name] = value

    def _unset(self, name: str) -> Any:
        raise UnknownField(f"{name} was not set")

    @classmethod
    def _properties(cls) -> set[str]:
        return {name for name in dir(cls) if isinstance(getattr(cls, name), property)}
