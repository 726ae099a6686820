"""Everything a run leaves on disk: commits, logs and trained policies."""
