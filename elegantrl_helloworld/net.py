"""The neural networks: first for discrete actions, then for continuous ones between -1 and 1, then the critics.

Letters at the end of a name are its shape: B = batch, S = state_dim, A = action_dim.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def build_mlp(dims: list[int], activation: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """Linear layers of the sizes `dims` and activations between them; `norm` keeps what these receive in one range."""
    layers: list[nn.Module] = []
    for dim_in, dim_out in pairwise(dims):
        layers += [nn.Linear(dim_in, dim_out), nn.LayerNorm(dim_out) if norm else nn.Identity(), activation()]
    return nn.Sequential(*layers[:-2])


def orthogonal_mlp(dims: list[int], last_gain: float) -> nn.Sequential:
    """The network of PPO: tanh and orthogonal weights; `last_gain` is the size of its first outputs."""
    net = build_mlp(dims, nn.Tanh)
    linears = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in linears:
        nn.init.orthogonal_(layer.weight, last_gain if layer is linears[-1] else math.sqrt(2))
        nn.init.zeros_(layer.bias)
    return net


def gaussian_logprob(x_BA: Tensor, mean_BA: Tensor, log_std_BA: Tensor) -> Tensor:
    """log N(x; mean, std) per row: the entries of an action are independent, so their log-densities add up."""
    z_BA = (x_BA - mean_BA) / log_std_BA.exp()
    return (-0.5 * z_BA**2 - log_std_BA - 0.5 * math.log(2 * math.pi)).sum(-1)


class QNet(nn.Module):
    """DQN: the value of every action in a state."""

    def __init__(self, net_dims: list[int], state_dim: int, action_dim: int):
        super().__init__()
        self.net = build_mlp([state_dim, *net_dims, action_dim], norm=True)

    def forward(self, state_BS: Tensor) -> Tensor:
        return self.net(state_BS)  # q_BA

    def best_action(self, state_BS: Tensor) -> Tensor:
        return self.net(state_BS).argmax(-1)


class ActorDiscretePPO(nn.Module):
    """PPO: the log-probability of every action in a state."""

    def __init__(self, net_dims: list[int], state_dim: int, action_dim: int):
        super().__init__()
        self.net = orthogonal_mlp([state_dim, *net_dims, action_dim], last_gain=0.01)  # begins with equal chances

    def forward(self, state_BS: Tensor) -> Tensor:
        return self.net(state_BS).log_softmax(-1)  # logprob_BA

    def best_action(self, state_BS: Tensor) -> Tensor:
        return self.net(state_BS).argmax(-1)

    def sample(self, state_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Random actions and their log-probabilities."""
        logprob_BA = self(state_BS)
        action_B = torch.multinomial(logprob_BA.exp(), 1).squeeze(1)
        return action_B, logprob_BA.gather(1, action_B[:, None]).squeeze(1)

    def logprob_and_entropy(self, state_BS: Tensor, action_B: Tensor) -> tuple[Tensor, Tensor]:
        logprob_BA = self(state_BS)
        entropy_B = -(logprob_BA.exp() * logprob_BA).sum(-1)
        return logprob_BA.gather(1, action_B[:, None]).squeeze(1), entropy_B


class ActorPPO(nn.Module):
    """PPO: a Gaussian over raw actions; the environment receives them clipped to [-1, 1]."""

    def __init__(self, net_dims: list[int], state_dim: int, action_dim: int):
        super().__init__()
        self.net = orthogonal_mlp([state_dim, *net_dims, action_dim], last_gain=0.01)  # begins with a mean near 0
        self.log_std_A = nn.Parameter(torch.full((action_dim,), -0.5))

    def best_action(self, state_BS: Tensor) -> Tensor:
        return self.net(state_BS).clamp(-1, 1)

    def sample(self, state_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Random raw actions and their log-densities."""
        mean_BA = self.net(state_BS)
        raw_BA = mean_BA + self.log_std_A.exp() * torch.randn_like(mean_BA)
        return raw_BA, gaussian_logprob(raw_BA, mean_BA, self.log_std_A)

    def logprob_and_entropy(self, state_BS: Tensor, raw_BA: Tensor) -> tuple[Tensor, Tensor]:
        logprob_B = gaussian_logprob(raw_BA, self.net(state_BS), self.log_std_A)
        entropy = (self.log_std_A + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return logprob_B, entropy.expand_as(logprob_B)


class Actor(nn.Module):
    """TD3: one action per state, without chance."""

    def __init__(self, net_dims: list[int], state_dim: int, action_dim: int):
        super().__init__()
        self.net = build_mlp([state_dim, *net_dims, action_dim])

    def forward(self, state_BS: Tensor) -> Tensor:
        return self.net(state_BS).tanh()  # action_BA

    best_action = forward


class ActorSAC(nn.Module):
    """SAC: tanh of a Gaussian whose mean and width depend on the state."""

    def __init__(self, net_dims: list[int], state_dim: int, action_dim: int):
        super().__init__()
        self.net = build_mlp([state_dim, *net_dims, 2 * action_dim])

    def best_action(self, state_BS: Tensor) -> Tensor:
        mean_BA, _ = self.net(state_BS).chunk(2, dim=-1)
        return mean_BA.tanh()

    def sample(self, state_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Random actions and their log-densities, both with a gradient to the network."""
        mean_BA, log_std_BA = self.net(state_BS).chunk(2, dim=-1)
        log_std_BA = log_std_BA.clamp(-20, 2)
        raw_BA = mean_BA + log_std_BA.exp() * torch.randn_like(mean_BA)
        # The density of a = tanh(u) is that of u divided by da/du = 1 - tanh(u)^2. The form below equals
        # log(1 - tanh(u)^2) and stays exact for large u, where tanh(u) rounds to 1.
        log_slope_BA = 2 * (math.log(2) - raw_BA - F.softplus(-2 * raw_BA))
        return raw_BA.tanh(), gaussian_logprob(raw_BA, mean_BA, log_std_BA) - log_slope_BA.sum(-1)


class CriticPPO(nn.Module):
    """The value of a state."""

    def __init__(self, net_dims: list[int], state_dim: int):
        super().__init__()
        self.net = orthogonal_mlp([state_dim, *net_dims, 1], last_gain=1.0)

    def forward(self, state_BS: Tensor) -> Tensor:
        return self.net(state_BS).squeeze(-1)  # value_B


class CriticTwin(nn.Module):
    """TD3 and SAC: two independent values of an action in a state; the smaller one guards against optimism."""

    def __init__(self, net_dims: list[int], state_dim: int, action_dim: int):
        super().__init__()
        self.net1 = build_mlp([state_dim + action_dim, *net_dims, 1], norm=True)
        self.net2 = build_mlp([state_dim + action_dim, *net_dims, 1], norm=True)

    def forward(self, state_BS: Tensor, action_BA: Tensor) -> tuple[Tensor, Tensor]:
        pair_BX = torch.cat((state_BS, action_BA), dim=-1)
        return self.net1(pair_BX).squeeze(-1), self.net2(pair_BX).squeeze(-1)  # q1_B, q2_B
