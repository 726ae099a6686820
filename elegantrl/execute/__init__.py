"""Where roles run: the executor contract and its backends."""
