"""Standard output of commands whose text is their result: it arrives as a whole or the command fails."""

from __future__ import annotations

import os
import sys

from ..errors import StorageError


def open_closed_streams() -> None:
    """Replace standard streams that the caller has closed, for which Python has None, by ones that drop their text."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open to the end of the process


def write_line(text: str) -> None:
    """Print ``text`` at once; raises ``StorageError`` if the output, a file on a full disk for example, is not written.

    A reader that has ended raises ``BrokenPipeError``, which ends a command without a message.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"standard output cannot be written: {error.strerror}; free some space") from None
