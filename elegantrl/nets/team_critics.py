"""Centralised critics: an ensemble of action values for each agent of a team, all in one batched product.

Axes: B rows, G agents, E critics of an agent, A action, F features of the whole team.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..tree import Tree
from ..types import Obs, seen_part, vector_dim
from .layers import ALL, EnsembleLinear, Members, Stack, mlp
from .networks import NetSpec
from .policies.base import agent_leaves


class TeamCritic(nn.Module):
    """Q_g(s, a_1 ... a_G) for each agent g: [B, F], [B, G, A] -> [E, B, G].

    A critic sees ``Obs.state``, or the observations of all agents side by side where there is none, and the actions of
    all agents. Critics share an encoder if the observation of an agent is no vector of floats.
    """

    def __init__(self, obs: Tree, action_dim: int, net: NetSpec, num_critics: int, normed: bool = False):
        """``obs`` are the leaves of a team's observations; if ``normed``, hidden layers are layer-normalised."""
        super().__init__()
        (self.num_agents,) = net.team
        self.has_state = isinstance(obs, Obs) and obs.state is not None
        if self.has_state:
            self.encoder, num_features = None, vector_dim(obs.state)
        else:
            leaves = agent_leaves(seen_part(obs), net.team)
            self.encoder = net.build_encoder(leaves)
            of_one = vector_dim(leaves) if self.encoder is None else self.encoder.num_features
            num_features = self.num_agents * of_one
        sizes = (num_features + self.num_agents * action_dim, *net.hidden, 1)
        # Member e * G + g is critic e of agent g: the first G members are one critic of each agent.
        num_members = num_critics * self.num_agents
        self.net = mlp(sizes, net.activation, init=net.init, num_members=num_members, normed=normed)

    def features(self, obs: Tree, normed: Tree) -> Tensor:
        """What all critics see besides actions [B, F], given observations and their normalised part."""
        if self.has_state:
            state: Tensor = obs.state
            return state
        seen_BGF: Tensor = normed if self.encoder is None else self.encoder(normed)
        return seen_BGF.flatten(1)

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        return self.subset(ALL, features, action)

    def subset(self, members: Members, features: Tensor, action: Tensor) -> Tensor:
        """The values of the chosen critics of each agent; the others are not computed: [members, B, G]."""
        if isinstance(members, Tensor):
            first_E1 = members.unsqueeze(1) * self.num_agents
            members = (first_E1 + torch.arange(self.num_agents, device=members.device)).flatten()
        return self._values(members, torch.cat([features, action.flatten(1)], -1))

    def of_own(self, features: Tensor, action: Tensor, own_action: Tensor) -> Tensor:
        """The value for each agent [B, G], by its first critic, of its ``own_action`` beside the others' ``action``.

        Agent g has a gradient only for its own action and through its own critic.
        """
        first, *others = self.net
        assert isinstance(first, EnsembleLinear)
        members, team, num_outputs = slice(self.num_agents), self.num_agents, first.weight.shape[-1]
        # The first layer is linear: an agent's inputs give what the joint action of all gives, plus what the change of
        # its own action gives. Neither inputs for each agent nor gradients for all inputs are needed.
        shared_GBK = first.subset(members, torch.cat([features, action.flatten(1)], -1))
        weight_GGAK = first.weight[members, features.shape[-1] :].view(team, team, -1, num_outputs)
        own_GAK = weight_GGAK.diagonal().movedim(-1, 0)
        hidden_GBK = torch.baddbmm(shared_GBK, (own_action - action).transpose(0, 1), own_GAK)
        return Stack(*others).subset(members, hidden_GBK).squeeze(-1).t()

    def _values(self, members: Members, inputs: Tensor) -> Tensor:
        q_MB = self.net.subset(members, inputs).squeeze(-1)
        return q_MB.view(-1, self.num_agents, q_MB.shape[-1]).transpose(1, 2)
