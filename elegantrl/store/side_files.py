"""Files that training does not need: metrics, plots, and the best policy, which every commit holds too."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..errors import ConfigError, ElegantRLError, format_error

log = logging.getLogger(__name__)


class SideFiles:
    """Writes files that training does not need. A failed write is reported once per file; training continues."""

    def __init__(self, notify: Callable[[str], None] = log.warning) -> None:
        self._notify = notify
        self._reported: set[str] = set()

    def attempt(self, name: str, write: Callable[[], object]) -> bool:
        """Call ``write``, which writes the file ``name``; False if it failed."""
        try:
            write()
        except ConfigError:  # not an error of the disk: the user can and must correct it
            raise
        except Exception as error:  # a full disk, a removed folder, or any error of a plotting or logging library
            if name not in self._reported:
                self._reported.add(name)
                reason = str(error) if isinstance(error, ElegantRLError) else format_error(error)
                self._notify(f"{name} cannot be written: {reason}; training goes on without it")
            return False
        return True
