"""The documented networks, ``XNet(net_dims, state_dim, action_dim)``, on top of the networks of this library.

Axes: B rows, E critics, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..nets.critics import EnsembleCritic, ValueNet
from ..nets.networks import NetSpec
from ..nets.policies import CategoricalPolicy, DeterministicPolicy, GaussianPolicy, Policy, QPolicy, SquashedPolicy
from ..types import ActionSpec, Leaf


def on_policy_net(net_dims: Sequence[int]) -> NetSpec:
    return NetSpec(tuple(net_dims), "tanh", "orthogonal")


class PolicyNet(nn.Module):
    """A policy as documents use it: ``net(states)`` gives the best known actions, ``get_action`` explores."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy = policy

    def forward(self, state: Tensor) -> Tensor:
        action, _ = self.policy.act(state, self.policy.initial_carry(len(state)))
        # Actions of a normal policy may leave the range; environments clip them.
        return action.clamp(-1, 1) if action.is_floating_point() else action

    def get_action(self, state: Tensor) -> Tensor:
        """Actions as in training, drawn from torch's global stream."""
        (draw,) = self.policy.draw(1, len(state), torch.default_generator)
        return self.policy.explore(state, self.policy.initial_carry(len(state)), draw).action

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The state dict of the policy, as in ``actor.pth``."""
        return self.policy.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return self.policy.load_state_dict(state_dict, strict, assign)


class Actor(PolicyNet):
    """A deterministic policy (DDPG, TD3)."""

    def __init__(self, net_dims: Sequence[int], state_dim: int, action_dim: int):
        super().__init__(DeterministicPolicy(Leaf((state_dim,)), ActionSpec(dim=action_dim), NetSpec(tuple(net_dims))))


class ActorSAC(PolicyNet):
    """tanh of a normal (SAC)."""

    def __init__(self, net_dims: Sequence[int], state_dim: int, action_dim: int):
        super().__init__(SquashedPolicy(Leaf((state_dim,)), ActionSpec(dim=action_dim), NetSpec(tuple(net_dims))))


class ActorPPO(PolicyNet):
    """A normal whose standard deviation does not depend on the state (PPO, A2C)."""

    def __init__(self, net_dims: Sequence[int], state_dim: int, action_dim: int):
        super().__init__(GaussianPolicy(Leaf((state_dim,)), ActionSpec(dim=action_dim), on_policy_net(net_dims)))


class ActorDiscretePPO(PolicyNet):
    """A choice among ``action_dim`` (PPO, A2C)."""

    def __init__(self, net_dims: Sequence[int], state_dim: int, action_dim: int):
        super().__init__(
            CategoricalPolicy(Leaf((state_dim,)), ActionSpec(choices=(action_dim,)), on_policy_net(net_dims))
        )


class QNet(nn.Module):
    """Values [B, A] of every choice; of ``num_nets`` networks the first gives the output."""

    num_nets, dueling = 1, False

    def __init__(self, net_dims: Sequence[int], state_dim: int, action_dim: int):
        super().__init__()
        sizes = (Leaf((state_dim,)), ActionSpec(choices=(action_dim,)), NetSpec(tuple(net_dims)))
        nets = (QPolicy(*sizes, dueling=self.dueling) for _ in range(self.num_nets))
        self.nets = nn.ModuleList(nets)

    def forward(self, state: Tensor) -> Tensor:
        return self._values(0, state)

    def get_action(self, state: Tensor) -> Tensor:
        """The best choices [B]."""
        return self(state).argmax(-1)

    def _values(self, number: int, state: Tensor) -> Tensor:
        net = self.nets[number]
        assert isinstance(net, QPolicy)
        return net.q(state)


class QNetDuel(QNet):
    """With a state value and advantages."""

    dueling = True


class QNetTwin(QNet):
    """Two networks."""

    num_nets = 2

    def get_q1_q2(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self._values(0, state), self._values(1, state)


class QNetTwinDuel(QNetTwin):
    """Two networks, each with a state value and advantages."""

    dueling = True


class Critic(nn.Module):
    """Values [B] of states and actions."""

    num_critics = 1

    def __init__(self, net_dims: Sequence[int], state_dim: int, action_dim: int):
        super().__init__()
        self.net = EnsembleCritic(Leaf((state_dim,)), action_dim, NetSpec(tuple(net_dims)), self.num_critics)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.net(state, action)[0]


class CriticTwin(Critic):
    """Two critics; the first gives the output."""

    num_critics = 2

    def get_q1_q2(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        q_EB = self.net(state, action)  # noqa: N806
        return q_EB[0], q_EB[1]

    def get_q_min(self, state: Tensor, action: Tensor) -> Tensor:
        return self.net(state, action).amin(0)


class CriticPPO(nn.Module):
    """Values [B] of states."""

    def __init__(self, net_dims: Sequence[int], state_dim: int, action_dim: int = 1):
        super().__init__()
        self.net = ValueNet(Leaf((state_dim,)), on_policy_net(net_dims))

    def forward(self, state: Tensor) -> Tensor:
        return self.net(state)
