"""Names of settings: the error for an unknown name suggests known ones, also for names of other libraries."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ..errors import ConfigError, did_you_mean

FOREIGN = {
    "learning_rate": "lr",
    "total_timesteps": "max_steps",
    "timesteps": "max_steps",
    "break_step": "max_steps",
    "n_envs": "num_envs",
    "env_num": "num_envs",
    "n_steps": "horizon",
    "num_steps": "horizon",
    "horizon_len": "horizon",
    "train_freq": "horizon",
    "n_epochs": "num_epochs",
    "update_epochs": "num_epochs",
    "clip_range": "clip",
    "clip_coef": "clip",
    "ratio_clip": "clip",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "gradient_steps": "updates_per_step",
    "exploration_final_eps": "epsilon_end",
    "target_update_interval": "target_interval",
    "polyak": "tau",
    "net_arch": "hidden",
    "net_dims": "hidden",
    "random_seed": "seed",
    "target_reward": "target_return",
    "out_dir": "run_dir",
    "env_args": "env_kwargs",
    "eval_freq": "eval.interval",
    "eval_interval": "eval.interval",
    "n_eval_episodes": "eval.episodes",
    "eval_episodes": "eval.episodes",
    "save_freq": "checkpoint.interval",
}
"""Names of settings in other libraries, and their names here."""


def check_names(data: Mapping[str, object], known: Iterable[str], prefix: str = "") -> None:
    """Raise for the first unknown name, with a suggestion."""
    known = list(known)
    for name in data:
        if name not in known:
            raise ConfigError(f"there is no setting {prefix}{name}; {suggest_name(str(name), known)}")


def suggest_name(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?``; names may begin with a section, and a name without one may match several."""
    known = list(known)
    section, _, word = name.rpartition(".")
    same = sorted(option for option in known if option.rpartition(".")[2] == word)
    if same:
        return _did_you_mean(same)
    foreign = difflib.get_close_matches(word.lower(), FOREIGN, n=1, cutoff=0.8)
    ours = [option for option in known if foreign and matches(option, FOREIGN[foreign[0]])]
    if ours:
        return _did_you_mean(ours)
    # Only the part after the section is compared: all flags of a section have similar whole names.
    near = did_you_mean(word, {option.rpartition(".")[2] for option in known})
    if not near.startswith("did you mean"):
        return near
    words = [word for word in near.split("'")[1::2]]
    options = [option for word in words for option in known if option.rpartition(".")[2] == word]
    options.sort(key=lambda option: option.rpartition(".")[0] != section)  # stable: the nearest of the section first
    return _did_you_mean(options[:3])


def matches(option: str, name: str) -> bool:
    """Whether ``option`` is the setting ``name``, which carries a section only if its last word is not unique."""
    return option == name or ("." not in name and option.rpartition(".")[2] == name)


def _did_you_mean(options: list[str]) -> str:
    return f"did you mean {' or '.join(map(repr, options))}?"
