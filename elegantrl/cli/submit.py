"""``elegantrl submit --address URL -- train ...``: a command of this library as a job of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import re
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import FlagCreatePairsOff

from ..errors import ConfigError, ElegantRLError, RoleError, did_you_mean, format_error
from .output import write_line
from .parse import parse

REMOTE = ("train", "evolve", "eval", "bench")
"""Commands that make sense on a cluster."""
REACH_SECONDS = 10.0
"""Within this time a cluster that can be reached answers."""
POLL_SECONDS = 1.0
SILENT_SECONDS = 30.0
"""After this time without output the cluster is asked whether it is still there."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Run a command of elegantrl on a Ray cluster, and show its output until it ends.

    `elegantrl submit --address http://HOST:8265 -- train ppo CartPole-v1 --executor ray --address auto`

    A cluster with token authentication reads the token from the variables RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or
    RAY_AUTH_TOKEN_PATH). Other secrets belong to the cluster: every user of its dashboard sees the command.
    """

    address: Annotated[str, tyro.conf.arg(metavar="URL")]
    """The dashboard of the cluster, http://HOST:8265."""
    working_dir: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """A folder with code of your own (an environment, an agent), which is sent to the cluster."""
    no_wait: FlagCreatePairsOff[bool] = False
    """Print the name of the job and return at once."""


def main(argv: list[str]) -> int:
    own, command = split(argv)
    flags = parse(Flags, own, "elegantrl submit")
    check_command(command)
    if flags.working_dir is not None and not flags.working_dir.is_dir():
        raise ConfigError(f"--working-dir {flags.working_dir} is not a folder; name one with your code")
    address = flags.address.rstrip("/")
    client = connect(address)
    runtime = {} if flags.working_dir is None else {"working_dir": str(flags.working_dir)}
    with explained(address, "submitting the job"):
        job = client.submit_job(entrypoint=shlex.join(["python", "-m", "elegantrl", *command]), runtime_env=runtime)
    write_line(f"job {job} on {address}")
    if flags.no_wait:
        return 0
    try:
        return follow(client, job, address)
    except KeyboardInterrupt:
        write_line(f"the job goes on; end it with: ray job stop {job} --address {address}")
        return 130


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words for this command and those for the cluster, which follow ``--``."""
    words = list(argv)
    if "--" in words:
        cut = words.index("--")
        return words[:cut], words[cut + 1 :]
    return words, []


def check_command(command: Sequence[str]) -> None:
    """Refuse what would fail on the cluster, or show a secret there."""
    if not command:
        raise ConfigError(
            "there is no command for the cluster; write it after --, for example: -- train ppo CartPole-v1"
        )
    if command[0] not in REMOTE:
        raise ConfigError(f"{command[0]!r} is no command for a cluster; {did_you_mean(command[0], REMOTE)}")
    for word in command:
        if re.search(r"://[^/\s]*@", word):
            raise ConfigError(
                "an address in the command holds a password, which every user of the cluster would see; give it to the"
                " cluster as a variable of its pods"
            )


def connect(address: str) -> Any:
    """A client of the cluster's job server."""
    if "@" in address:
        raise ConfigError(
            "--address holds a password; write http://HOST:8265, and the token of Ray into RAY_AUTH_TOKEN"
        )
    if not re.fullmatch(r"https?://[^/\s]+", address):
        raise ConfigError(f"--address {address!r} is not the address of a dashboard; write http://HOST:8265")
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError(f"elegantrl submit needs {error.name}: pip install 'elegantrl[ray]'") from None
    logging.getLogger(JobSubmissionClient.__module__).setLevel(logging.WARNING)  # it reports the end of a connection
    check_reachable(address)
    with explained(address, "the job server"):
        return JobSubmissionClient(address)


def check_reachable(address: str) -> None:
    """Ask for the version within a time limit; Ray's client has none."""
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=REACH_SECONDS) as answer:
            is_ray = "ray_version" in json.loads(answer.read(100_000))
    except urllib.error.HTTPError as error:
        is_ray = error.code in (401, 403)  # it asks for a token, which Ray's client sends
    except (ValueError, http.client.HTTPException):
        is_ray = False
    except OSError as error:
        raise ConfigError(
            f"--address {address} cannot be reached ({getattr(error, 'reason', error)}); is the cluster running, and"
            f" its dashboard on that port?"
        ) from None
    if not is_ray:
        raise ConfigError(f"--address {address} answers, but not as a Ray dashboard does; check host and port")


@contextlib.contextmanager
def explained(address: str, doing: str) -> Iterator[None]:
    """Turns the errors of Ray's client into one sentence."""
    try:
        yield
    except ElegantRLError:
        raise
    except Exception as error:  # requests, aiohttp and Ray have exceptions of their own
        if type(error).__name__ == "AuthenticationError":
            raise ConfigError(
                f"{address} asks for another token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to that of the cluster"
            ) from None
        raise RoleError(f"{doing} failed at {address}: {format_error(error):.400}") from None


def follow(client: Any, job: str, address: str) -> int:
    """Print the job's output until it ends; its exit code."""
    with explained(address, f"following job {job}, which may go on,"):
        asyncio.run(show_output(client, job, address))
        info = client.get_job_info(job)
        while not info.status.is_terminal():  # the output ends shortly before the job does
            time.sleep(POLL_SECONDS)
            info = client.get_job_info(job)
    if info.status.value == "SUCCEEDED":
        return 0
    if info.driver_exit_code and info.driver_exit_code > 0:
        return int(info.driver_exit_code)
    reason = " ".join((info.message or "no reason given").split())
    raise RoleError(f"job {job} ended as {info.status.value}: {reason:.400}")


async def show_output(client: Any, job: str, address: str) -> None:
    """Print what the job prints; a cluster that has disappeared is noticed, even if it left the connection open."""
    chunks = client.tail_job_logs(job)
    while True:
        chunk = asyncio.ensure_future(anext(chunks, None))
        while not (await asyncio.wait({chunk}, timeout=SILENT_SECONDS))[0]:
            check_reachable(address)
        if (text := chunk.result()) is None:
            return
        print(text, end="", flush=True)
