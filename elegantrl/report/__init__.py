"""Reads finished runs: statistics and plots."""
