"""One error tree. A message names the thing, the value, the limit and the remedy, in one sentence.

ElegantRLError
  ConfigError       a setting is unknown, out of range or contradicts another           exit code 2
  SpecError         an environment breaks the contract or does not fit the agent        exit code 2
  RoleError         a worker, learner or evaluator failed while the run was going on    exit code 3
    NonFinite       a NaN or infinity appeared in data or losses
      Diverged      in a learner's losses, parameters or optimisers
    RoleDied        the process of a role ended before it returned a result
      PeersLost     a learner lost its connection to the others during a step
      NodeLost      the machine of a role was lost
    RoleTimedOut    a role took longer than allowed and was ended
    BuildTimedOut   a role took longer than allowed to be built; it is not built again
    BudgetSpent     roles or environments failed more often than the run allows
    CallbackFailed  a callback of the user raised an error; the run stopped with a commit
  CheckpointError   no usable commit, or one that was damaged or tampered with          exit code 4
  StorageError      the run folder cannot be written                                    exit code 5
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ElegantRLError(Exception):
    """Base of every error that the library raises on purpose."""

    exit_code = 1


class ConfigError(ElegantRLError, ValueError):
    exit_code = 2


class SpecError(ElegantRLError, ValueError):
    exit_code = 2


class RoleError(ElegantRLError, RuntimeError):
    exit_code = 3


class NonFinite(RoleError):
    pass


class Diverged(NonFinite):
    pass


class RoleDied(RoleError):
    pass


class PeersLost(RoleDied):
    pass


class NodeLost(RoleDied):
    """``node`` names the machine: all roles that were there report the same one."""

    def __init__(self, text: str, node: str = ""):
        super().__init__(text)
        self.node = node


class RoleTimedOut(RoleError):
    pass


class BuildTimedOut(RoleError):
    pass


class BudgetSpent(RoleError):
    pass


class CallbackFailed(RoleError):
    pass


class CheckpointError(ElegantRLError, RuntimeError):
    exit_code = 4


class StorageError(ElegantRLError, OSError):
    exit_code = 5


def format_error(error: BaseException) -> str:
    """``ValueError: its text`` in one line; some have no text."""
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def innermost_line(error: BaseException) -> str:
    """``file:line`` where an error was raised; empty if it was not raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` with the nearest known names first, or all names if none is near."""
    names = {n.lower(): n for n in sorted(known, reverse=True)}
    word = name.lower()
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    # Names with the same words in another order, or with one of them, are nearer than their spelling suggests.
    reordered = [n for n in names if all(any(_alike(a, b) for b in word.split("_")) for a in n.split("_"))]
    near = [*reordered, *(n for n in near if n not in reordered)]
    if near:
        return f"did you mean {' or '.join(repr(names[n]) for n in near[:3])}?"
    return f"known names: {', '.join(sorted(names.values()))}"


def _alike(a: str, b: str) -> bool:
    return len(min(a, b, key=len)) > 2 and (a.startswith(b) or b.startswith(a))
