"""What runs in a process of its own: workers act, learners learn, evaluators score."""
