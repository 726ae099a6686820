"""YAML as plain data, within limits that no ordinary settings file reaches and that stop a hostile one."""

from __future__ import annotations

from typing import Any

import yaml

from ..errors import ConfigError

MAX_CHARACTERS = 256 << 10
MAX_DEPTH = 20
MAX_VALUES = 20_000
"""Maximum number of values after all aliases are expanded: nested aliases grow exponentially."""


def parse_yaml(text: str) -> Any:
    """The data in ``text``; neither tags that build objects nor more than the limits above are accepted."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"the config has {len(text)} characters, the limit is {MAX_CHARACTERS}")
    try:
        _check_size(text)
        return yaml.safe_load(text)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # ValueError: a month 13, 5,000 digits
        raise ConfigError(f"the config is not YAML: {' '.join(str(error).split())}") from None


def _check_size(text: str) -> None:
    """Walk through the parser's events, which costs no recursion, before anything is built from them."""
    anchors: dict[str | None, int] = {}
    incomplete: list[tuple[str | None, int]] = []  # collections: their anchors, and how many values came before
    values = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            incomplete.append((event.anchor, values))
            values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = incomplete.pop()
            anchors[anchor] = values - before
        elif isinstance(event, yaml.ScalarEvent):
            anchors[event.anchor] = 1
            values += 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise ConfigError(f"the config's alias *{event.anchor} stands for nothing complete before it")
            values += anchors[event.anchor]
        if len(incomplete) > MAX_DEPTH:
            raise ConfigError(f"the config is nested deeper than {MAX_DEPTH} levels")
        if values > MAX_VALUES:
            raise ConfigError(f"the config holds more than {MAX_VALUES} values")
