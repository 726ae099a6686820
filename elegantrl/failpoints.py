"""Named places where a test can make a process die, fail or wait.

``ELEGANTRL_FAILPOINTS="commit.before_manifest=kill9,commit.begin=sleep:2"`` arms points of a process. The variable is
read once, at import; without it ``failpoint`` is one lookup in an empty dict.

    kill9            the process dies at once, as from ``kill -9`` or a power cut
    raise            RuntimeError, a bug
    enospc           OSError, the disk is full
    sleep:SECONDS    a slow disk or a long pause
"""

from __future__ import annotations

import errno
import os
import signal
import time

from .errors import ConfigError


def parse_failpoints(text: str) -> dict[str, str]:
    """``name=action`` pairs, separated by commas, as a dict."""
    armed: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        name, _, action = pair.partition("=")
        if action not in ("kill9", "raise", "enospc") and not action.startswith("sleep:"):
            raise ConfigError(f"ELEGANTRL_FAILPOINTS: {pair!r} is not name=kill9|raise|enospc|sleep:SECONDS")
        armed[name] = action
    return armed


ARMED = parse_failpoints(os.environ.get("ELEGANTRL_FAILPOINTS", ""))


def failpoint(name: str) -> None:
    """Perform the action that is armed under ``name``; nothing in an ordinary run."""
    action = ARMED.get(name)
    if action == "kill9":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise RuntimeError(f"failpoint {name}")
    elif action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif action is not None:
        time.sleep(float(action.removeprefix("sleep:")))
