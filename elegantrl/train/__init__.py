"""Who does what: worker, learner, evaluator, supervisor, and the folder they write to."""
