"""PPO in one file, from top to bottom, for discrete and continuous actions. It uses no other file of this package.

    python -m elegantrl_helloworld.ppo_single_file [CartPole-v1]

Letters at the end of a name are its shape: T = steps, N = environments, B = minibatch, S = state, A = action.
"""

import math
import sys

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal

N, T, EPOCHS, BATCH = 16, 64, 10, 256  # environments, steps of each per rollout, passes over a rollout, minibatch
GAMMA, LAM, CLIP, LEARNING_RATE = 0.98, 0.9, 0.2, 2e-3


def mlp(dim_in: int, dim_out: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(dim_in, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, dim_out)]
    for layer, gain in zip(layers[::2], (math.sqrt(2), math.sqrt(2), last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Policy(nn.Module):
    """A distribution of actions for every state."""

    def __init__(self, state_dim: int, space: gym.Space):
        super().__init__()
        self.discrete = isinstance(space, gym.spaces.Discrete)
        action_dim = int(space.n) if self.discrete else space.shape[0]
        self.net = mlp(state_dim, action_dim, last_gain=0.01)
        self.log_std_A = nn.Parameter(torch.zeros(action_dim))

    def forward(self, state_BS: torch.Tensor) -> Distribution:
        if self.discrete:
            return Categorical(logits=self.net(state_BS))
        return Independent(Normal(self.net(state_BS), self.log_std_A.exp()), 1)  # log_prob sums over A


def train(env_id: str = "CartPole-v1", seed: int = 0, max_steps: int = 60_000) -> float:
    """Returns the mean return of the last 20 episodes of training."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # networks this small are slower with several threads
    # SAME_STEP: the step that ends an episode already returns the first state of the next one, and the last state of
    # the ended one in info["final_obs"].
    envs = gym.make_vec(env_id, N, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    space, state_dim = envs.single_action_space, envs.single_observation_space.shape[0]
    policy, critic = Policy(state_dim, space), mlp(state_dim, 1, last_gain=1.0)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], LEARNING_RATE, eps=1e-5, fused=True)

    state_NS = torch.as_tensor(envs.reset(seed=seed)[0])
    return_N, returns = torch.zeros(N), [0.0]
    rollouts = max_steps // (N * T)
    for rollout in range(rollouts):
        # 1. Act. The log-probability is that of the policy that acts; the updates below change the policy.
        rows = []
        for _ in range(T):
            with torch.no_grad():
                dist = policy(state_NS)
                action_N = dist.sample()
                logprob_N = dist.log_prob(action_N)
            numbers = action_N if policy.discrete else action_N.clamp(-1, 1) * torch.as_tensor(space.high)
            obs, reward, terminated, truncated, info = envs.step(numbers.numpy())
            next_state_NS = torch.as_tensor(obs).clone()
            for i in (terminated | truncated).nonzero()[0]:
                next_state_NS[i] = torch.as_tensor(info["final_obs"][i])
            ends = (torch.as_tensor(terminated).float(), torch.as_tensor(truncated).float())
            reward_N = torch.as_tensor(reward, dtype=torch.float32)
            rows.append((state_NS, action_N, logprob_N, reward_N, next_state_NS, *ends))
            state_NS = torch.as_tensor(obs).clone()
            return_N += reward_N
            returns += [float(return_N[i]) for i in (terminated | truncated).nonzero()[0]]
            return_N *= (1 - ends[0]) * (1 - ends[1])
        state, action, logprob, reward, next_state, terminated, truncated = map(torch.stack, zip(*rows, strict=True))

        # 2. Advantages: termination ends the value, the time limit does not; both end the sum over later steps.
        with torch.no_grad():
            value_TN, next_value_TN = critic(state).squeeze(-1), critic(next_state).squeeze(-1)
        delta_TN = reward + GAMMA * (1 - terminated) * next_value_TN - value_TN
        advantage_TN, later_N = torch.zeros(T, N), torch.zeros(N)
        for t in reversed(range(T)):
            later_N = delta_TN[t] + GAMMA * LAM * (1 - terminated[t]) * (1 - truncated[t]) * later_N
            advantage_TN[t] = later_N
        return_TN = advantage_TN + value_TN
        advantage_TN = (advantage_TN - advantage_TN.mean()) / (advantage_TN.std() + 1e-8)

        # 3. Learn: clip the ratio of new to old probability, so that the policy stays near the one that acted.
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - rollout / rollouts)
        flat = [x.flatten(0, 1) for x in (state, action, logprob, advantage_TN, return_TN)]
        for _ in range(EPOCHS):
            for index_B in torch.randperm(T * N).split(BATCH):
                state_BS, action_B, old_logprob_B, advantage_B, return_B = (x[index_B] for x in flat)
                ratio_B = (policy(state_BS).log_prob(action_B) - old_logprob_B).exp()
                policy_loss = -torch.minimum(ratio_B * advantage_B, ratio_B.clamp(1 - CLIP, 1 + CLIP) * advantage_B)
                value_loss = (critic(state_BS).squeeze(-1) - return_B) ** 2
                optimizer.zero_grad()
                (policy_loss + 0.5 * value_loss).mean().backward()
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
                optimizer.step()
        if rollout % 10 == 9 or rollout == rollouts - 1:
            mean = sum(returns[-20:]) / len(returns[-20:])
            print(f"{(rollout + 1) * N * T:>10,} steps, mean return of the last 20 episodes {mean:.1f}", flush=True)
    return mean


if __name__ == "__main__":
    train(*sys.argv[1:2])
