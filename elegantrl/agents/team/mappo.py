"""Multi-agent PPO (Yu et al. 2022, arXiv:2103.01955). Without a central value it is independent PPO (arXiv:2011.09533).

Each agent has the loss of PPO on its own actions. Only the value network, which acting does not need, sees the state of
the whole environment. Axes: T rollout steps, N lanes, G agents, B minibatch rows, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ...config.fields import Hidden, setting, unused
from ...nets.critics import ScaledValueNet, ValueNet
from ...nets.networks import NetSpec
from ...tree import Tree
from ...types import EnvSpec, Leaf, Rollout, active_of, state_of, vector_dim
from ..on_policy import OnPolicyConfig
from ..ppo import AgentPPO, ClippedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class MAPPOConfig(ClippedConfig):
    """Settings of MAPPO."""

    horizon: int = setting(25, ge=1)
    num_epochs: int = setting(5, ge=1)
    batch_size: int = setting(1024, ge=1)
    """Steps of the whole team per gradient step."""
    normalize_value: bool = True
    central_value: bool = True
    """The value network sees the global state, or all observations if the environment gives none; otherwise the value
    of an agent sees what the agent sees."""
    team_reward: bool = False
    """All agents learn from the sum of their rewards, with one central value; otherwise each learns from its own
    reward, with a value of its own."""
    separate: bool = False
    """Each agent has networks of its own; otherwise agents share them and their number is an input."""
    vtrace: Hidden[bool] = unused(False)

    def net(self) -> NetSpec:
        return replace(OnPolicyConfig.net(self), separate=self.separate)


class AgentMAPPO(AgentPPO):
    teams = True
    config: MAPPOConfig  # type: ignore[assignment]

    def build_value(self, spec: EnvSpec) -> ValueNet:
        c = self.config
        if not c.central_value:
            return super().build_value(spec)
        assert spec.num_agents is not None
        size = spec.num_agents * vector_dim(self.policy.feature_leaves)
        if (state := state_of(spec.obs)) is not None:
            size = vector_dim(state)
        build = ScaledValueNet if c.normalize_value else ValueNet
        net = replace(self.policy_spec.net, separate=False)  # one network that sees all agents
        return build(Leaf((size,)), net, c.layer_norm, num_values=1 if c.team_reward else spec.num_agents)

    def value_inputs(self, obs: Tree, features: Tree) -> Tree:
        """The global state [..., S], the features of all agents [..., G * F], or those of each agent [..., G, F]."""
        if not self.config.central_value:
            return features
        state = state_of(obs)
        return features.flatten(-2) if state is None else state

    def rewards(self, r: Rollout) -> Tensor:
        """Rewards [T, N, G], or of the whole team [T, N, 1]."""
        reward_TNG = super().rewards(r)
        return reward_TNG.sum(-1, keepdim=True) if self.config.team_reward else reward_TNG

    def ends(self, r: Rollout) -> tuple[Tensor, Tensor]:
        """Where the episode of the team or of an agent ends, both [T, N, G] or [T, N, 1]."""
        terminated, truncated = r.terminated.unsqueeze(-1), r.truncated.unsqueeze(-1)
        active_TNG = active_of(r.next_obs)
        if active_TNG is None or self.config.team_reward:  # the reward of the team goes on after an agent has ended
            return terminated, truncated
        return terminated | ~active_TNG, truncated & active_TNG
