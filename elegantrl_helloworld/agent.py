"""The algorithms: DQN, TD3, SAC and PPO, and the replay buffer of the first three.

Letters at the end of a name are its shape: T = steps in time, N = environments, B = batch, S = state_dim,
A = action_dim. A discrete action is one number, so that its A is missing.
"""

from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .env import VecEnv
from .net import Actor, ActorDiscretePPO, ActorPPO, ActorSAC, CriticPPO, CriticTwin, QNet


class Rollout(NamedTuple):
    """What happened during T steps in N environments, or a batch of it (B in the place of T, N)."""

    state: Tensor  # (T, N, S)
    action: Tensor  # (T, N, A), or (T, N) for discrete actions
    reward: Tensor  # (T, N)
    next_state: Tensor  # (T, N, S), what the action led to, also in the last step of an episode
    terminated: Tensor  # (T, N), 1.0 where the task ended: nothing follows, the value of next_state is 0
    truncated: Tensor  # (T, N), 1.0 where the time limit cut the episode: next_state has a value all the same
    discount: Tensor  # (T, N), the weight of the value of next_state: gamma, after n steps gamma^n, 0 where terminated
    logprob: Tensor | None = None  # (T, N), only PPO: of the action, by the policy that chose it


def look_ahead(rollout: Rollout, n_step: int) -> Rollout:
    """Cut a rollout into pieces of `n_step` steps and add up rewards from each step to the end of its piece or episode.

    The state at that end becomes next_state, so that one update carries the news of a reward over many steps.
    """
    for t in reversed(range(len(rollout.reward) - 1)):
        if (t + 1) % n_step:
            go_on_N = rollout.terminated[t] + rollout.truncated[t] == 0
            rollout.reward[t] += go_on_N * rollout.discount[t] * rollout.reward[t + 1]
            rollout.discount[t] *= torch.where(go_on_N, rollout.discount[t + 1], 1)
            rollout.next_state[t] = torch.where(go_on_N[:, None], rollout.next_state[t + 1], rollout.next_state[t])
    return rollout


class ReplayBuffer:
    """The last `max_size` transitions. A full buffer overwrites the oldest."""

    def __init__(self, max_size: int):
        self.max_size, self.size, self.position, self.added = max_size, 0, 0, 0
        self.rows: list[Tensor] = []

    def update(self, rollout: Rollout) -> None:
        flat = [x.flatten(0, 1) for x in rollout if x is not None]
        self.added = len(flat[0])
        if not self.rows:
            self.rows = [x.new_empty((self.max_size, *x.shape[1:])) for x in flat]
        index = (self.position + torch.arange(self.added, device=flat[0].device)) % self.max_size
        for row, x in zip(self.rows, flat, strict=True):
            row[index[-self.max_size :]] = x[-self.max_size :]
        self.position = (self.position + self.added) % self.max_size
        self.size = min(self.size + self.added, self.max_size)

    def sample(self, batch_size: int) -> Rollout:
        index_B = torch.randint(self.size, (batch_size,), device=self.rows[0].device)
        return Rollout(*[row[index_B] for row in self.rows])


class AgentBase:
    """What all agents share. An agent adds `build_nets`, `explore_action` and how it learns.

    `explore_action` returns actions that try things out; the one of PPO also returns their log-probabilities.
    `update_once` learns from one batch and returns the losses of the critic and of the actor.
    """

    if_off_policy = True
    if_discrete: bool | None = None  # the kind of actions; None means both

    def __init__(self, net_dims: list[int], state_dim: int, action_dim: int, gpu_id: int = -1, args: Any = None):
        use_gpu = gpu_id >= 0 and torch.cuda.is_available()
        self.device = torch.device(f"cuda:{gpu_id}" if use_gpu else "cpu")
        self.net_dims, self.state_dim, self.action_dim, self.args = net_dims, state_dim, action_dim, args
        self.steps = 0  # taken in all environments together
        self.build_nets()  # `act` is the policy, or the Q network of DQN

    @torch.no_grad()
    def explore_env(self, env: VecEnv, horizon_len: int) -> Rollout:
        """Take `horizon_len` steps in every environment."""
        rows = []
        for _ in range(horizon_len):
            state_NS = self.to_tensor(env.state_NS)
            action_N, *logprob_N = self.explore_action(state_NS)
            outcome = env.step(action_N.cpu().numpy())
            next_state_NS, reward_N, terminated_N, truncated_N = (self.to_tensor(x) for x in outcome)
            reward_N, discount_N = reward_N * self.args.reward_scale, self.args.gamma * (1 - terminated_N)
            rows += [(state_NS, action_N, reward_N, next_state_NS, terminated_N, truncated_N, discount_N, *logprob_N)]
            self.steps += env.num_envs
        return Rollout(*[torch.stack(column) for column in zip(*rows, strict=True)])

    @torch.no_grad()
    def select_action(self, state: Any) -> Any:
        """The best known action in one state, as NumPy."""
        return self.act.best_action(self.to_tensor(state)[None])[0].cpu().numpy()

    def update_net(self, buffer: ReplayBuffer) -> tuple[float, float]:
        """Learn from a replay buffer: `repeat_times` updates per new transition. Returns the mean losses."""
        count = max(1, round(buffer.added * self.args.repeat_times))
        losses = torch.tensor([self.update_once(buffer.sample(self.args.batch_size)) for _ in range(count)])
        return tuple(losses.mean(0).tolist())

    def to_tensor(self, x: Any) -> Tensor:
        return torch.as_tensor(x, dtype=torch.float32, device=self.device)

    def optimizer_of(self, net: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(net.parameters(), self.args.learning_rate, eps=1e-5, fused=True)

    def gradient_step(self, optimizer: torch.optim.Adam, loss: Tensor) -> None:
        params = optimizer.param_groups[0]["params"]
        optimizer.zero_grad()
        loss.backward(inputs=params)  # no other: the loss of an actor must not leave gradients in the critic
        nn.utils.clip_grad_norm_(params, self.args.clip_grad_norm)
        optimizer.step()

    @torch.no_grad()
    def soft_update(self, target: nn.Module, net: nn.Module) -> None:
        """Move a target network slowly towards its network: the values that others learn from must not jump."""
        for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast, self.args.soft_update_tau)


# ---- off-policy


class AgentDQN(AgentBase):
    """Deep Q-network with the target of double DQN. Mnih et al. 2015; van Hasselt et al. 2016 (arXiv:1509.06461)."""

    if_discrete = True

    def build_nets(self) -> None:
        self.act = QNet(self.net_dims, self.state_dim, self.action_dim).to(self.device)
        self.act_target = deepcopy(self.act)
        self.optimizer = self.optimizer_of(self.act)

    def explore_rate(self) -> float:
        """The chance of a random action: from 1 down to `explore_rate` during `explore_steps` steps."""
        return max(self.args.explore_rate, 1 - self.steps / self.args.explore_steps)

    def explore_action(self, state_NS: Tensor) -> tuple[Tensor, ...]:
        best_N = self.act.best_action(state_NS)
        coin_N = torch.rand(best_N.shape, device=self.device) < self.explore_rate()  # one coin per environment
        return (torch.where(coin_N, torch.randint_like(best_N, self.action_dim), best_N),)

    @torch.no_grad()
    def q_target(self, batch: Rollout) -> Tensor:
        # One network chooses the next action, the other one judges it: the maximum of one noisy network is too high.
        best_B = self.act(batch.next_state).argmax(1, keepdim=True)
        next_q_B = self.act_target(batch.next_state).gather(1, best_B).squeeze(1)
        return batch.reward + batch.discount * next_q_B

    def update_once(self, batch: Rollout) -> tuple[Tensor, Tensor]:
        q_B = self.act(batch.state).gather(1, batch.action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q_B, self.q_target(batch))
        self.gradient_step(self.optimizer, loss)
        self.soft_update(self.act_target, self.act)
        return loss.detach(), q_B.detach().mean().neg()


class AgentActorCritic(AgentBase):
    """What TD3 and SAC share: a policy, two critics with target networks, and how the critics learn."""

    if_discrete = False
    actor_class: type[nn.Module]

    def build_nets(self) -> None:
        self.act = self.actor_class(self.net_dims, self.state_dim, self.action_dim).to(self.device)
        self.cri = CriticTwin(self.net_dims, self.state_dim, self.action_dim).to(self.device)
        self.cri_target = deepcopy(self.cri)
        self.act_optimizer, self.cri_optimizer = self.optimizer_of(self.act), self.optimizer_of(self.cri)

    def explore_action(self, state_NS: Tensor) -> tuple[Tensor, ...]:
        if self.steps < self.args.buffer_init_size:  # an untrained policy tries too little
            return (torch.rand(len(state_NS), self.action_dim, device=self.device) * 2 - 1,)
        return (self.noisy_action(state_NS),)

    def update_critic(self, batch: Rollout) -> Tensor:
        target_B = self.q_target(batch)
        q1_B, q2_B = self.cri(batch.state, batch.action)
        loss = F.mse_loss(q1_B, target_B) + F.mse_loss(q2_B, target_B)
        self.gradient_step(self.cri_optimizer, loss)
        self.soft_update(self.cri_target, self.cri)
        return loss.detach()


class AgentTD3(AgentActorCritic):
    """Twin delayed deterministic policy gradient. Fujimoto et al. 2018 (arXiv:1802.09477)."""

    actor_class = Actor

    def build_nets(self) -> None:
        super().build_nets()
        self.act_target = deepcopy(self.act)
        self.updates, self.actor_loss = 0, torch.zeros(())

    def noisy_action(self, state_NS: Tensor) -> Tensor:
        action_NA = self.act(state_NS)
        return (action_NA + self.args.explore_noise_std * torch.randn_like(action_NA)).clamp(-1, 1)

    @torch.no_grad()
    def q_target(self, batch: Rollout) -> Tensor:
        next_BA = self.act_target(batch.next_state)
        noise_BA = (0.2 * torch.randn_like(next_BA)).clamp(-0.5, 0.5)  # similar actions should have similar values
        next_q_B = torch.minimum(*self.cri_target(batch.next_state, (next_BA + noise_BA).clamp(-1, 1)))
        return batch.reward + batch.discount * next_q_B

    def update_once(self, batch: Rollout) -> tuple[Tensor, Tensor]:
        critic_loss = self.update_critic(batch)
        self.updates += 1
        if self.updates % 2 == 0:  # delayed: the policy follows values that have settled a little
            loss = -self.cri(batch.state, self.act(batch.state))[0].mean()
            self.gradient_step(self.act_optimizer, loss)
            self.soft_update(self.act_target, self.act)
            self.actor_loss = loss.detach()
        return critic_loss, self.actor_loss


class AgentSAC(AgentActorCritic):
    """Soft actor-critic with a learned temperature. Haarnoja et al. 2018 (arXiv:1812.05905)."""

    actor_class = ActorSAC

    def build_nets(self) -> None:
        super().build_nets()
        self.log_alpha = torch.zeros((), device=self.device, requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], self.args.learning_rate)
        self.target_entropy = -float(self.action_dim)

    def noisy_action(self, state_NS: Tensor) -> Tensor:
        return self.act.sample(state_NS)[0]

    @torch.no_grad()
    def q_target(self, batch: Rollout) -> Tensor:
        next_action_BA, next_logprob_B = self.act.sample(batch.next_state)
        next_q_B = torch.minimum(*self.cri_target(batch.next_state, next_action_BA))
        next_value_B = next_q_B - self.log_alpha.exp() * next_logprob_B  # randomness is rewarded
        return batch.reward + batch.discount * next_value_B

    def update_once(self, batch: Rollout) -> tuple[Tensor, Tensor]:
        critic_loss = self.update_critic(batch)
        action_BA, logprob_B = self.act.sample(batch.state)
        q_B = torch.minimum(*self.cri(batch.state, action_BA))
        actor_loss = (self.log_alpha.exp().detach() * logprob_B - q_B).mean()
        self.gradient_step(self.act_optimizer, actor_loss)
        # alpha rises while the entropy, the mean of -logprob, is below its target, and falls while it is above.
        self.gradient_step(self.alpha_optimizer, -self.log_alpha * (logprob_B.detach().mean() + self.target_entropy))
        return critic_loss, actor_loss.detach()


# ---- on-policy


@torch.no_grad()
def gae(reward_TN, value_TN, next_value_TN, terminated_TN, truncated_TN, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation, Schulman et al. 2016 (arXiv:1506.02438).

    A terminated step has no future value. A truncated step has one, gamma * V(next_state). Both end the sum over
    later steps, which belong to another episode.
    """
    delta_TN = reward_TN + gamma * (1 - terminated_TN) * next_value_TN - value_TN
    go_on_TN = gamma * lam * (1 - terminated_TN) * (1 - truncated_TN)
    advantage_TN = torch.zeros_like(delta_TN)
    later_N = torch.zeros_like(delta_TN[0])
    for t in reversed(range(len(delta_TN))):
        later_N = advantage_TN[t] = delta_TN[t] + go_on_TN[t] * later_N
    return advantage_TN


def ppo_loss(logprob_B: Tensor, old_logprob_B: Tensor, advantage_B: Tensor, clip: float) -> Tensor:
    """The clipped objective: no gain, and so no gradient, from moving a probability ratio past 1 +- clip."""
    ratio_B = (logprob_B - old_logprob_B).exp()
    return -torch.minimum(ratio_B * advantage_B, ratio_B.clamp(1 - clip, 1 + clip) * advantage_B).mean()


class AgentPPO(AgentBase):
    """Proximal policy optimisation, discrete and continuous. Schulman et al. 2017 (arXiv:1707.06347)."""

    if_off_policy = False

    def build_nets(self) -> None:
        actor_class = ActorDiscretePPO if self.args.if_discrete else ActorPPO
        self.act = actor_class(self.net_dims, self.state_dim, self.action_dim).to(self.device)
        self.cri = CriticPPO(self.net_dims, self.state_dim).to(self.device)
        self.act_optimizer, self.cri_optimizer = self.optimizer_of(self.act), self.optimizer_of(self.cri)

    def explore_action(self, state_NS: Tensor) -> tuple[Tensor, ...]:
        return self.act.sample(state_NS)

    @torch.no_grad()
    def get_advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """advantage_TN, and return_TN, which the critic should predict."""
        value_TN, next_value_TN = self.cri(rollout.state), self.cri(rollout.next_state)
        ends = (rollout.terminated, rollout.truncated)
        advantage_TN = gae(rollout.reward, value_TN, next_value_TN, *ends, self.args.gamma, self.args.lambda_gae_adv)
        return advantage_TN, advantage_TN + value_TN

    def update_net(self, rollout: Rollout) -> tuple[float, float]:
        """Learn from one rollout: `repeat_times` passes over all of its steps, in random order."""
        steps_before = self.steps - rollout.reward.numel()
        for optimizer in (self.act_optimizer, self.cri_optimizer):  # the learning rate falls to 0 at `break_step`
            optimizer.param_groups[0]["lr"] = self.args.learning_rate * (1 - steps_before / self.args.break_step)
        advantage_TN, return_TN = self.get_advantages(rollout)
        advantage_TN = (advantage_TN - advantage_TN.mean()) / (advantage_TN.std() + 1e-8)
        data = (rollout.state, rollout.action, rollout.logprob, advantage_TN, return_TN)
        state, action, old_logprob, advantage, returns = (x.flatten(0, 1) for x in data)
        losses = []
        for _ in range(int(self.args.repeat_times)):
            for index_B in torch.randperm(len(state), device=self.device).split(self.args.batch_size):
                logprob_B, entropy_B = self.act.logprob_and_entropy(state[index_B], action[index_B])
                actor_loss = ppo_loss(logprob_B, old_logprob[index_B], advantage[index_B], self.args.ratio_clip)
                self.gradient_step(self.act_optimizer, actor_loss - self.args.lambda_entropy * entropy_B.mean())
                critic_loss = F.mse_loss(self.cri(state[index_B]), returns[index_B])
                self.gradient_step(self.cri_optimizer, critic_loss)
                losses.append((critic_loss.detach(), actor_loss.detach()))
        return tuple(torch.tensor(losses).mean(0).tolist())
