"""Whether child processes may import the script that started this process.

A child imports the script so that it can find classes that the script defines. That repeats all statements at the top
level of the script, except those under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import ast
import sys
import threading
from pathlib import Path
from types import FrameType


def main_module_is_guarded() -> bool:
    """Whether the statement of the script that is running now is one that an import of the script does not repeat.

    The statement is found on the stack: the text of the script alone does not tell which one starts the run.
    """
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or path.endswith("__main__.py"):  # a notebook, an interactive session or ``python -m package``
        return True  # children import none of these
    line = running_line(vars(main))
    try:
        return line is not None and is_guarded(Path(path).read_text(encoding="utf-8"), line)
    except (OSError, ValueError, SyntaxError):
        return False


def running_line(main: dict[str, object]) -> int | None:
    """The line at the top level of the script that the main thread executes; None if the top level has ended."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals is main and frame.f_code.co_name == "<module>":
            return frame.f_lineno
        frame = frame.f_back
    return None


def is_guarded(text: str, line: int) -> bool:
    """Whether this line of a script belongs to the body of an ``if`` that depends on ``__name__``."""
    return any(
        isinstance(node, ast.If)
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)
        and any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
        for node in ast.walk(ast.parse(text))
    )
