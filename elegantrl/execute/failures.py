"""Failures of child processes, and the errors that report them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal

from ..errors import ConfigError, RoleError
from .base import RemoteTraceback

NO_MAIN_GUARD = 77
"""Exit code of a child that ran a script's top level instead of its role."""


def format_exit(exit_code: int) -> str:
    """A description of the unexpected end of a child."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"died of {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"died of signal {-exit_code}"


def leave_if_importing_main() -> None:
    """End a child that runs the top level of a script instead of its role.

    A child imports the script that started it. If the script starts a run at its top level, each child would start
    processes in turn, fail, and be replaced.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(NO_MAIN_GUARD)


def no_main_guard() -> ConfigError:
    return ConfigError(
        'a script that starts processes needs `if __name__ == "__main__":` around the start, because each process'
        " imports the script; add it, or use --executor inline"
    )


def cannot_be_sent(error: Exception) -> ConfigError:
    return ConfigError(
        f"what cannot be pickled cannot be sent to another process ({' '.join(str(error).split())});"
        f" name a class or a function at the top of a module, or use --executor inline"
    )


def revive(body: bytes, text: str, where: str) -> BaseException:
    """An error of a child, with its traceback as the cause."""
    try:
        error = pickle.loads(body)
    except Exception:
        error = RoleError(text.strip().splitlines()[-1])
    error.__cause__ = RemoteTraceback(text, where)
    return error
