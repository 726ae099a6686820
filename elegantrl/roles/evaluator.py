"""Evaluation: separate environments, separate seeds, no exploration. A score depends on (weights, seed) alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import tree
from ..envs.vec_env import VecEnv, raise_faults
from ..errors import NonFinite
from ..nets.policies import FlatPolicy, PolicySpec
from ..types import Weights
from .acting import actor_of

STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11,
              2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond 30, 2 is close enough."""


@dataclass(frozen=True, slots=True)
class Score:
    """Returns of one evaluation; of a team the return of an episode is the sum over its agents."""

    returns: tuple[float, ...]
    agent_returns: tuple[tuple[float, ...], ...] = ()
    """The return of each agent of a team in each episode; empty for one agent."""
    won: tuple[bool, ...] = ()
    """Whether each episode was won; empty if the task cannot be won."""
    agent_names: tuple[str, ...] = ()
    """The agents of ``agent_returns``."""

    @property
    def mean(self) -> float:
        return math.fsum(self.returns) / len(self.returns)

    @property
    def std(self) -> float:
        mean = self.mean  # a sum over all episodes
        return math.sqrt(math.fsum((r - mean) ** 2 for r in self.returns) / len(self.returns))

    @property
    def ci95(self) -> float:
        """Half the width of the 95 % confidence interval of the mean; 0 for a single episode."""
        n = len(self.returns)
        if n < 2:
            return 0.0
        quantile = STUDENT_95[n - 2] if n - 2 < len(STUDENT_95) else 2.0
        return quantile * self.std / math.sqrt(n - 1)

    @property
    def lower(self) -> float:
        """The lower end of that interval."""
        return self.mean - self.ci95

    @property
    def agent_means(self) -> dict[str, float]:
        """The mean return of each agent of a team; empty for one agent."""
        columns = zip(self.agent_names, zip(*self.agent_returns, strict=True), strict=False)
        return {name: math.fsum(returns) / len(returns) for name, returns in columns}

    @property
    def win_rate(self) -> float | None:
        """The fraction of episodes that were won; None if the task cannot be won."""
        return sum(self.won) / len(self.won) if self.won else None

    def __add__(self, other: Score) -> Score:
        names = self.agent_names or other.agent_names
        returns, agent_returns = self.returns + other.returns, self.agent_returns + other.agent_returns
        return Score(returns, agent_returns, self.won + other.won, names)


class Evaluator:
    """Plays one episode per lane, so that short and long episodes have the same weight."""

    def __init__(self, env: VecEnv, policy_spec: PolicySpec, max_episode_steps: int = 100_000):
        self.env, self.max_episode_steps = env, max_episode_steps
        self.policy = FlatPolicy(policy_spec, env.device)
        self.actor = actor_of(self.policy.policy, env.spec.num_envs)
        self.initial_carry = self.policy.policy.initial_carry(env.spec.num_envs)

    @torch.inference_mode()
    def score(self, weights: Weights, seed: int) -> Score:
        """The return of the first episode in every lane."""
        self.policy.load(weights.flat)
        spec, device = self.env.spec, self.env.device
        obs, carry = self.env.reset(seed), self.initial_carry
        total = torch.zeros(spec.num_envs, *spec.team, dtype=torch.float64, device=device)  # [N] or [N, G]
        running = torch.ones(spec.num_envs, dtype=torch.bool, device=device)
        won: Tensor | None = None
        for _ in range(self.max_episode_steps):
            if not running.any():  # one host read per step; evaluation is not the hot path
                break
            action, carry = self.actor.act(obs, carry)
            step = raise_faults(self.env, self.env.step(action))
            total += step.reward * tree.across(running, step.reward)
            ended = step.terminated | step.truncated
            if step.won is not None:
                now = step.won & ended & running
                won = now if won is None else won | now
            running &= ~ended
            obs = step.obs
            if self.initial_carry != ():
                carry = tree.where(ended, self.initial_carry, carry)
        returns = tuple((total if total.dim() == 1 else total.sum(-1)).tolist())
        if not all(map(math.isfinite, returns)):
            raise NonFinite(f"{spec.name} gave a non-finite reward during evaluation; fix the environment")
        agent_returns = tuple(map(tuple, total.tolist())) if spec.team else ()
        return Score(returns, agent_returns, () if won is None else tuple(won.tolist()), spec.agent_names)

    def close(self) -> None:
        self.env.close()
