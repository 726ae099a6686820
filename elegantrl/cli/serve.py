"""``elegantrl serve RUN``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..deploy.app import Limits
from ..deploy.serve import serve
from .parse import parse


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Serve the best policy of a run, or several runs as one ensemble, by HTTP; needs the extra elegantrl[serve].

    `elegantrl serve runs/a`: on this machine only, at http://127.0.0.1:8080/; its page is at /docs.

    `curl -H 'content-type: application/json' -d '{"obs": [0, 0, 0, 0]}' http://127.0.0.1:8080/act`: an action.

    `elegantrl serve runs/a --host 0.0.0.0 --rate 500`: for the network. There is no password and no encryption: put a
    proxy that has them in front of it.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]
    """A run folder, or several whose policies are averaged."""
    host: str = "127.0.0.1"
    """Address to listen on; any other than this machine's own lets others on the network use the policy."""
    port: int = 8080
    """Port to listen on; 0 selects a free one."""
    max_rows: int = Limits.max_rows
    """Observations of one request at most."""
    max_bytes: int = Limits.max_bytes
    """Bytes of one request at most."""
    max_requests: int = Limits.max_requests
    """Requests at once at most; others are answered with 429."""
    rate: float = Limits.rate
    """Requests per second at most; others are answered with 429. 0: no limit."""
    weights: Annotated[tuple[float, ...], tyro.conf.arg(help_behavior_hint="")] = ()
    """Weight of each run in an ensemble; by default all are equal."""
    allow_import: tyro.conf.FlagCreatePairsOff[bool] = False
    """Trust the folder: import and run the code that it names by import path."""


def main(argv: list[str]) -> int:
    flags = parse(Flags, argv, "elegantrl serve")
    limits = Limits(
        max_rows=flags.max_rows, max_bytes=flags.max_bytes, max_requests=flags.max_requests, rate=flags.rate
    )
    serve(
        flags.runs,
        host=flags.host,
        port=flags.port,
        limits=limits,
        weights=flags.weights or None,
        allow_import=flags.allow_import,
    )
    return 0
