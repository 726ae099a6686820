"""Training data: rollouts and replay."""
