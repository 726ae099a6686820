"""How other systems are trained for time_to_threshold.py: one module for each."""
