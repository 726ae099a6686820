"""The gradients of SAC's losses on a CPU, derived by hand, in two halves that may run on two cores.

The halves (``sac_half``) synchronise six times per update; torch's threads would synchronise about a hundred times.
On machines that wake a core slowly, a process that spins in between (``core_helper``) is faster and threads are not.
Without a helper half 1 runs after half 0 in the same process. Both give the same bits, so measured time may decide.
Axes: B minibatch rows, A action.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
import weakref
from collections import deque
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..agents.base import Agent
from ..agents.gradients import Gradients, LazyMetrics
from ..agents.off_policy import ActionNoise
from ..agents.optim import GradStep
from ..agents.sac import AgentSAC, SACConfig
from ..nets.layers import flatten_
from ..nets.policies import SquashedPolicy
from ..types import Transition
from .core_helper import CoreHelper
from .sac_half import (
    ACTION,
    CONTROL_BYTES,
    CRITIC,
    NEW_VALUE,
    POLICY,
    PRECEDING,
    SAMPLE_NEXT,
    TASKS,
    VALUES,
    Half,
    Sizes,
    minimum_of,
)

log = logging.getLogger(__name__)

TRIAL, PERIOD = 5, 300
"""In every ``PERIOD`` updates ``TRIAL`` of them are timed without the helper and as many with it."""


class SACByHand(Gradients):
    """The gradients of critics and policy. The agent's parameters move into memory that a helper can share."""

    def __init__(self, agent: AgentSAC, helper: bool = False):
        super().__init__("by hand")
        c = agent.config
        obs_dim = int(agent.policy.net[0].in_features)  # type: ignore[arg-type]
        self.sizes = Sizes(obs_dim, agent.policy.action_dim, c.hidden, c.batch_size)
        self.fd = os.memfd_create("elegantrl-sac")
        weakref.finalize(self, os.close, self.fd)
        os.truncate(self.fd, self.sizes.num_bytes())
        memory = mmap.mmap(self.fd, self.sizes.num_bytes())
        self.control = memoryview(memory)[:CONTROL_BYTES].cast("q")
        """The helper's control page, in words."""
        self.shared = self.sizes.place(memory)
        agent.actor_step.flat = flatten_(agent.actor_step.params, self.shared["policy"])
        agent.critic_step.flat = flatten_(agent.critic_step.params, self.shared["critic"])
        agent.target.flat = flatten_(agent.critic_target.parameters(), self.shared["target"])
        self.half0, self.half1 = (Half(member, self.sizes, self.shared) for member in range(2))
        self.helper = CoreHelper(self.sizes, self.fd, self.control) if helper else None
        self.is_helped = self.was_helped = False
        self.turn = 0
        """Updates since the helper was last timed."""
        self.seconds = deque([1.0], TRIAL), deque([1.0], TRIAL)
        """Times of the last trials without and with the helper; medians are compared, since the first take longer."""

    @staticmethod
    def suits(agent: Agent) -> bool:
        """Whether this class supports the losses and networks of the agent."""
        return (
            type(agent) is AgentSAC
            and agent.critic_step.flat.device.type == "cpu"
            and agent.averaging.size == 1
            and agent.policy.encoder is None
            and suits(agent.config)
        )

    def losses(self, agent: Any) -> list[tuple[str, GradStep]]:
        """The hot functions that are differentiated here, in the order of an update."""
        return [("critic_loss", agent.critic_step), ("policy_loss", agent.actor_step)]

    def check_args(self, agent: Any, generator: torch.Generator) -> tuple[Transition, ActionNoise]:
        """Arguments of the losses on which these gradients are compared with autograd's."""
        rows, s = self.sizes.rows, self.sizes
        obs, next_obs = torch.randn(2, rows, s.obs, generator=generator)
        action = torch.rand(rows, s.action, generator=generator) * 2 - 1
        reward = torch.randn(rows, generator=generator)
        batch = Transition(obs, action, reward, torch.full((rows,), 0.9), next_obs)
        return batch, ActionNoise(*torch.randn(2, rows, s.action, generator=generator))

    @torch.no_grad()
    def __call__(self, agent: Any, name: str, step: GradStep, *args: Any) -> tuple[Tensor, LazyMetrics]:
        if name == "h_energy":
            with torch.enable_grad():
                return super().__call__(agent, name, step, *args)
        batch, noise = args
        if len(batch.reward) != self.sizes.rows:
            with torch.enable_grad():
                return super().__call__(agent, name, step, *args)
        # An update computes the policy's gradient after the critics', on the same batch and noise.
        return self.critic_gradient(agent, batch, noise) if name == "critic_loss" else self.policy_gradient(agent)

    def close(self) -> None:
        if self.helper is not None:
            self.helper.close()

    def critic_gradient(self, agent: AgentSAC, b: Transition, noise: ActionNoise) -> tuple[Tensor, LazyMetrics]:
        self.started = time.perf_counter()
        self.decide_help()
        self.write_batch(agent, b, noise)
        s, self.alpha = self.shared, agent.log_alpha.detach().exp()
        self.begin(SAMPLE_NEXT)
        self.half0.sample_actions()
        self.finish(SAMPLE_NEXT)

        self.begin(VALUES)
        target_q0, q0 = self.half0.values()
        self.finish(VALUES)
        target = b.reward + b.discount * (torch.minimum(target_q0, s["target_q1"]) - self.alpha * s["next_logp"])
        error0 = q0 - target
        torch.sub(s["q1"], target, out=s["error1"])
        self.begin(CRITIC)
        self.half0.differentiate_critic(error0)
        self.finish(CRITIC)
        loss = 0.5 * (error0.square().mean() + s["error1"].square().mean())
        metrics = {"loss/critic": loss, "critic/q": 0.5 * (q0.mean() + s["q1"].mean())}
        return s["critic_grad"], lambda: metrics

    def write_batch(self, agent: AgentSAC, b: Transition, noise: ActionNoise) -> None:
        """Write a minibatch and its noise to memory that both halves read."""
        s, policy = self.shared, agent.policy
        s["next_obs"].copy_(policy.normed(b.next_obs))
        s["obs"].copy_(policy.normed(b.obs))
        s["action"].copy_(b.action)
        s["next_noise"].copy_(noise.next_action)
        s["noise"].copy_(noise.action)

    def policy_gradient(self, agent: AgentSAC) -> tuple[Tensor, LazyMetrics]:
        s = self.shared
        self.begin(NEW_VALUE)
        s["new_q0"].copy_(self.half0.new_value())
        self.finish(NEW_VALUE)
        minimum, num_minimal = minimum_of(s["new_q0"], s["new_q1"])
        self.begin(ACTION)
        gradient = self.half0.action_gradient(s["new_q0"], minimum, num_minimal)
        self.finish(ACTION)
        gradient += s["gradient1"]
        self.differentiate_policy(gradient, self.alpha / len(minimum))
        loss = (self.alpha * s["new_logp"] - minimum).mean()
        metrics = {"loss/actor": loss, "policy/entropy": -s["new_logp"].mean()}
        if self.is_trial():
            self.seconds[self.was_helped].append(time.perf_counter() - self.started)
        return s["policy_grad"], lambda: metrics

    def differentiate_policy(self, action_gradient: Tensor, logp_gradient: Tensor) -> None:
        """Write the policy's gradient, given the loss's at its actions [B, A] and at their log-probabilities."""
        s, net, gradients = self.shared, self.half0.policy, self.half0.policy_gradients
        a, raw_log_std = s["new_action"], net.outputs[-1].chunk(2, -1)[1]
        # With a = tanh(x) and x = mean + std * noise: da/dx = 1 - a^2, and log p rises with x by 2a.
        at_x = action_gradient * (1 - a * a) + 2 * logp_gradient * a
        at_log_std = at_x * s["new_std"] * s["noise"] - logp_gradient
        at_log_std *= (raw_log_std >= SquashedPolicy.LOG_STD_MIN) & (raw_log_std <= SquashedPolicy.LOG_STD_MAX)
        torch.cat([at_x, at_log_std], -1, out=gradients[-1])
        for i in reversed(range(2, len(gradients))):
            net.gradient_below(i, gradients[i])
        self.begin(POLICY)
        if len(gradients) > 1:
            net.gradient_below(1, gradients[1])
        net.differentiate(0, gradients[0])
        self.finish(POLICY)

    # ---- half 1: in the helper, or after half 0 in this process

    def begin(self, task: int) -> None:
        if self.is_helped:
            assert self.helper is not None
            self.helper.post(task)

    def finish(self, task: int) -> None:
        if self.is_helped:
            assert self.helper is not None
            if self.helper.has_done():
                return
            # The tasks of this update that the helper has done are computed again here.
            self.helper.close()
            log.warning("the process that helped to learn died or hangs; learning goes on without it")
            self.helper, self.is_helped = None, False
            if task in PRECEDING:
                TASKS[PRECEDING[task]](self.half1)
        TASKS[task](self.half1)

    def decide_help(self) -> None:
        """Decide by measured times whether this update uses the helper."""
        if self.helper is not None and self.helper.is_ready():
            self.turn = (self.turn + 1) % PERIOD
            self.is_helped = self.turn > TRIAL if self.is_trial() else self.is_faster_with_help()
        self.was_helped = self.is_helped

    def is_trial(self) -> bool:
        return 0 < self.turn <= 2 * TRIAL

    def is_faster_with_help(self) -> bool:
        alone, helped = map(median, self.seconds)
        return helped < alone


def suits(c: SACConfig) -> bool:
    """Whether these settings are supported: plain networks, and SAC as in its paper."""
    kind = (c.num_critics, c.target_critics, c.actor_interval, c.activation, c.network)
    as_in_the_paper = kind == (2, "min", 1, "relu", "mlp")
    return as_in_the_paper and not (c.layer_norm or c.prioritized) and hasattr(os, "memfd_create")
