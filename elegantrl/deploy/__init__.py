"""Trained policies outside of this library: as files that other programs load, and behind an address."""
