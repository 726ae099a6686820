"""Runs one agent: spawns the roles, exchanges data and weights between them, recovers from failures, stops."""
