"""Roles, which may run in processes of their own: workers act, learners learn, evaluators score."""
