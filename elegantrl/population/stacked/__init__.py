"""A population on one device: P agents of one kind as one program over tensors with a leading axis P.

Axes: P members, T rollout steps, N lanes of a member, B minibatch rows, O observation, A action.
"""
