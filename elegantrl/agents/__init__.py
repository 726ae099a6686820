"""Agents: one file per algorithm and one per family; independent of environments, processes and files."""
