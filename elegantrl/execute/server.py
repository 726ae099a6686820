"""The last module that a fork server imports: it ends with its parent at once, instead of taking torch apart first."""

from __future__ import annotations

import atexit
import os
import sys

if any("multiprocessing.forkserver" in word for word in sys.orig_argv):  # nobody else has a use for it
    # Children leave by os._exit and never come here.
    atexit.register(os._exit, 0)
