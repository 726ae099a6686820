"""Benchmarks: each prints ratios or scores from one run and writes its JSON beside it."""
