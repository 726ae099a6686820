"""Limits on run folders. A folder is untrusted, so no import path in it is imported or called.

Registered names (agents, policies, Gymnasium ids, tensor environments) refer to installed code. An import path may
refer to any code, ``os:system`` for example: it needs the user's permission, on the command line, in Python, or by
``allow_import``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.run import RunConfig
from ..config.yaml_text import MAX_CHARACTERS, parse_yaml
from ..errors import CheckpointError, ConfigError
from ..imports import is_foreign_code
from .files import read_regular

CONFIG_FILE = "config.yaml"

GYMNASIUM_ONLY = {"additional_wrappers", "disable_env_checker", "entry_point", "vector_kwargs", "vectorization_mode"}
"""Arguments of Gymnasium itself, not of the environment; training sets none of them."""


def load_config(
    folder: Path, allow_import: bool = False, named: Collection[str] = (), agent_needed: bool = True
) -> RunConfig:
    """The config of a run folder; an agent by import path only if the user allows it or has ``named`` it.

    To evaluate a policy its agent is not needed: see ``RunConfig.from_dict``.
    """
    try:
        text = read_regular(folder / CONFIG_FILE, 4 * MAX_CHARACTERS).decode("utf-8")
        data = parse_yaml(text)
        agent = data.get("agent") if isinstance(data, Mapping) else None
        name = agent.get("name") if isinstance(agent, Mapping) else None
        if isinstance(name, str) and ":" in name and agent_needed and not allow_import and name not in named:
            raise refusal(f"the agent of {folder}", name, "")
        return RunConfig.from_yaml(text, agent_needed)
    except Refused:
        raise
    except Exception as error:  # an untrusted file: after any error of a setting the config is unusable
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}/{CONFIG_FILE} cannot be read ({reason:.300}); is {folder} a run folder?"
        ) from None


class Refused(ConfigError):
    """A folder names code by import path, and the user has not allowed it."""


def refusal(what: str, name: str, remedy: str) -> Refused:
    return Refused(
        f"{what} is named by the import path {name!r:.80}, and a folder may not choose what code runs here; if you"
        f" trust the folder, {remedy}add --allow-import, or allow_import=True in Python"
    )


def check_named(env_id: str, where: str) -> None:
    """Refuse an environment that has no name under which it could be made again."""
    if env_id.startswith("<"):
        raise ConfigError(f"the environment {env_id:.80} of {where} was a Python object; pass env= to evaluate")


def check_env_id(env_id: str, where: str) -> None:
    """Refuse an environment that is not registered; Gymnasium's own form ``module:EnvId`` imports a module too."""
    if is_foreign_code(env_id):
        raise refusal(f"the environment of {where}", env_id, f"name it with --env {env_id:.80}, or ")


def check_env_kwargs(kwargs: Mapping[str, Any], where: str) -> None:
    """Refuse arguments with which an installed environment could read a file or import something."""
    for name, value in kwargs.items():
        if name in GYMNASIUM_ONLY or not name.isidentifier() or name.startswith("_") or not _is_plain(value):
            raise Refused(
                f"the environment of {where} has the argument {name!r:.80}: {value!r:.80}, which may read a file or"
                f" choose code; if you trust the folder, add --allow-import, or allow_import=True in Python"
            )


def _is_plain(value: Any) -> bool:
    """Whether an argument holds only numbers and words: no file path and no import path."""
    return all(re.fullmatch(r"([\w+-][\w .,+-]*)?", text) for text in _strings(value))


def check_policy(spec: Any, where: str) -> None:
    """Refuse a policy, or a part of one, that is named by import path."""
    for text in _strings(spec):
        if ":" in text:
            raise refusal(f"the policy of {where}, or a part of it,", text, "")


def _strings(value: Any) -> Iterator[str]:
    """Every text in nested data, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
