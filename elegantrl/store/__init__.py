"""The files of a run: commits, logs and trained policies."""
