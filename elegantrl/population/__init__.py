"""Many runs as one: generational evolution and tournament-based ensemble training.

Every decision is a pure function of the log (``log``, ``fold``), so a population continues where it stopped.
"""
