"""One writer per run folder: a lock file that the kernel frees when the process that holds it dies."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from ..errors import ConfigError, StorageError

try:
    import fcntl
except ImportError:  # Windows: a run folder is then not protected against a second writer
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


class FolderLock:
    """The exclusive right to write to a run folder. ``.lock`` holds pid@host of the process that holds it."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / NAME
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock, or raise a ``ConfigError`` that names the process that holds it."""
        self._fd = self._open(0)

    def verify(self) -> bool:
        """Check that the lock file on disk is the one that is held; returns True if it was missing and was made again.

        A lock belongs to a file and not to its name: after ``.lock`` is removed, another run can create a new one.
        """
        if self._fd is None or fcntl is None:
            return False
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            self.release()
            with contextlib.suppress(FileNotFoundError):
                self._fd = self._open(os.O_EXCL)
                return True
            raise StorageError(f"run folder {self.path.parent} was removed while this run wrote to it") from None
        held = os.fstat(self._fd)
        if (held.st_dev, held.st_ino) != (found.st_dev, found.st_ino):
            raise ConfigError(
                f"{self.path} was replaced while this run held it, so another run may write to"
                f" {self.path.parent}; this run ends without another commit"
            )
        return False

    def release(self) -> None:
        """Release the lock, so that another process can write."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, flags: int) -> int:
        # Neither a link nor a pipe, and nothing is written before the lock is held: the file may be another run's.
        flags |= os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        try:
            fd = os.open(self.path, flags | getattr(os, "O_NONBLOCK", 0), 0o644)
        except FileExistsError:
            raise ConfigError(
                f"another run has taken {self.path.parent}; this run ends without another commit"
            ) from None
        except OSError as error:
            if self.path.is_symlink():
                raise ConfigError(f"{self.path} is a link; remove it or choose another folder") from None
            raise error
        try:
            self._claim(fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _claim(self, fd: int) -> None:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(f"{self.path} is not a regular file; remove it or choose another folder")
        if fcntl is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(fd, 200).decode("ascii", "replace")
                raise ConfigError(
                    f"run folder {self.path.parent} is in use by pid {owner}; stop it or choose another folder"
                ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}@{socket.gethostname()}".encode("ascii", "replace"), 0)
