"""Evaluation: separate environments, separate seeds, no exploration. A score depends on (weights, seed) alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

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
    """Returns of one evaluation."""

    returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.returns) / len(self.returns)

    @property
    def std(self) -> float:
        return math.sqrt(math.fsum((r - self.mean) ** 2 for r in self.returns) / len(self.returns))

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

    def __add__(self, other: Score) -> Score:
        return Score(self.returns + other.returns)


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
        obs, carry = self.env.reset(seed), self.initial_carry
        total = torch.zeros(self.env.spec.num_envs, dtype=torch.float64, device=self.env.device)
        running = torch.ones_like(total, dtype=torch.bool)
        for _ in range(self.max_episode_steps):
            if not running.any():  # one host read per step; evaluation is not the hot path
                break
            action, carry = self.actor.act(obs, carry)
            step = raise_faults(self.env, self.env.step(action))
            reward = step.reward if step.reward.dim() == 1 else step.reward.mean(-1)  # of a team
            total += reward * running
            ended = step.terminated | step.truncated
            running &= ~ended
            obs = step.obs
            if self.initial_carry != ():
                carry = tree.where(ended, self.initial_carry, carry)
        returns = tuple(total.tolist())
        if not all(map(math.isfinite, returns)):
            raise NonFinite(f"{self.env.spec.name} gave a non-finite reward during evaluation; fix the environment")
        return Score(returns)

    def close(self) -> None:
        self.env.close()
