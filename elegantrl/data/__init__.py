"""What was seen: rollouts and replay."""
