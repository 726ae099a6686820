"""SAC's update with gradients derived by hand, in two lanes that may run on two cores.

Each of two critics has a lane; lane 1 also asks the policy about the successors while lane 0 asks it about the states
themselves. The lanes meet six times per update, where torch's threads would about a hundred times: where it takes long
to wake a core, a helper process that spins in between pays and threads do not. Without a helper lane 1 runs after lane
0. Either way the bits are the same, so the clock may decide which.

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
from ..agents.gradients import Gradients, Tell
from ..agents.off_policy import ActionNoise
from ..agents.optim import GradStep
from ..agents.sac import AgentSAC, SACConfig
from ..nets.layers import flatten_
from ..nets.policies import SquashedPolicy
from ..types import Transition
from .helper import Helper
from .sac_halves import (
    BEFORE,
    CONTROL_BYTES,
    DRAW_NEXT,
    LEARN,
    LEARN_POLICY,
    NEW_VALUE,
    SLOPE,
    TASKS,
    VALUES,
    Side,
    Sizes,
    least_of,
)

log = logging.getLogger(__name__)

TRIAL, PERIOD = 5, 300
"""Updates that are tried with and without help, and after how many to try again."""


class SACByHand(Gradients):
    """The gradients of an agent whose parameters have moved into memory that a helper can share."""

    def __init__(self, agent: AgentSAC, helped: bool = False):
        c = agent.config
        obs_dim = int(agent.policy.net[0].in_features)  # type: ignore[arg-type]
        self.sizes = Sizes(obs_dim, agent.policy.action_dim, c.hidden, c.batch_size)
        self.fd = os.memfd_create("elegantrl-lanes")
        weakref.finalize(self, os.close, self.fd)
        os.truncate(self.fd, self.sizes.num_bytes())
        memory = mmap.mmap(self.fd, self.sizes.num_bytes())
        self.control = memoryview(memory)[:CONTROL_BYTES].cast("q")
        """The page of the helper, in words."""
        self.shared = self.sizes.place(memory)
        agent.actor_step.flat = flatten_(agent.actor_step.params, self.shared["policy"])
        agent.critic_step.flat = flatten_(agent.critic_step.params, self.shared["critic"])
        agent.target.flat = flatten_(agent.critic_target.parameters(), self.shared["target"])
        self.mine, self.other = (Side(member, self.sizes, self.shared) for member in range(2))
        self.helper = Helper(self.sizes, self.fd, self.control) if helped else None
        """Who may help from now on."""
        self.helped = False
        self.turn = 0
        """Updates since help was last tried."""
        self.seconds = deque([1.0], TRIAL), deque([1.0], TRIAL)
        """What the last trials took without and with help; in the middle, as the first ones take longer."""

    @staticmethod
    def suits(agent: Agent) -> bool:
        return (
            type(agent) is AgentSAC
            and agent.critic_step.flat.device.type == "cpu"
            and agent.averaging.size == 1
            and suits(agent.config)
        )

    def known(self, agent: Any) -> list[tuple[str, GradStep]]:
        return [("critic_loss", agent.critic_step), ("policy_loss", agent.actor_step)]

    def trial_batch(self, agent: Any, g: torch.Generator) -> Transition:
        rows, (obs, next_obs) = self.sizes.rows, torch.randn(2, self.sizes.rows, self.sizes.obs, generator=g)
        action = torch.rand(rows, self.sizes.action, generator=g) * 2 - 1
        return Transition(obs, action, torch.randn(rows, generator=g), torch.full((rows,), 0.9), next_obs)

    def trial_noise(self, agent: Any, b: Transition) -> tuple[ActionNoise]:
        return (agent.draw_noise(b),)

    @torch.no_grad()
    def __call__(self, agent: Any, name: str, step: GradStep, *args: Any) -> tuple[Tensor, Tell]:
        b, noise = args
        if len(b.reward) != agent.config.batch_size:
            with torch.enable_grad():
                return super().__call__(agent, name, step, *args)
        return self.critic_gradient(agent, b, noise) if name == "critic_loss" else self.actor_gradient(agent)

    def prepare(self, agent: AgentSAC, b: Transition, noise: ActionNoise) -> None:
        """Write a minibatch and its noise where both lanes read them."""
        s, norm = self.shared, agent.policy.norm
        s["next_obs"].copy_(norm(b.next_obs))
        s["obs"].copy_(norm(b.obs))
        s["action"].copy_(b.action)
        s["next_noise"].copy_(noise.next_action)
        s["noise"].copy_(noise.action)

    def close(self) -> None:
        if self.helper is not None:
            self.helper.close()

    def critic_gradient(self, agent: AgentSAC, b: Transition, noise: ActionNoise) -> tuple[Tensor, Tell]:
        self.started = time.perf_counter()
        self.decide()
        self.was_helped = self.helped
        self.prepare(agent, b, noise)
        s, self.alpha = self.shared, agent.log_alpha.detach().exp()
        self.begin(DRAW_NEXT)
        self.mine.draw_new()
        self.finish(DRAW_NEXT)

        self.begin(VALUES)
        target_q, q = self.mine.judge()
        self.finish(VALUES)
        wanted = b.reward + b.discount * (torch.minimum(target_q, s["target_q"]) - self.alpha * s["next_logp"])
        error = q - wanted
        torch.sub(s["q"], wanted, out=s["error"])
        self.begin(LEARN)
        self.mine.learn(error)
        self.finish(LEARN)
        critic_loss = 0.5 * (error.square().mean() + s["error"].square().mean())
        metrics = {"loss/critic": critic_loss, "critic/q": 0.5 * (q.mean() + s["q"].mean())}
        return s["critic_grad"], lambda: metrics

    def actor_gradient(self, agent: AgentSAC) -> tuple[Tensor, Tell]:
        s = self.shared
        self.begin(NEW_VALUE)
        s["first_q"].copy_(self.mine.judge_new())
        self.finish(NEW_VALUE)
        least, num_least = least_of(s["first_q"], s["second_q"])
        self.begin(SLOPE)
        slope = self.mine.climb(s["first_q"], least, num_least)
        self.finish(SLOPE)
        slope += s["slope"]
        self.policy_slope(slope, self.alpha / len(least))
        metrics = {"loss/actor": (self.alpha * s["new_logp"] - least).mean(), "policy/entropy": -s["new_logp"].mean()}
        if self.is_trial():
            self.seconds[self.was_helped].append(time.perf_counter() - self.started)
        return s["policy_grad"], lambda: metrics

    def decide(self) -> None:
        """Whether the next update is helped."""
        if self.helper is None or not self.helper.is_ready():
            return
        self.turn = (self.turn + 1) % PERIOD
        self.helped = self.turn > TRIAL if self.is_trial() else self.is_faster_with_help()

    def is_trial(self) -> bool:
        return 0 < self.turn <= 2 * TRIAL

    def is_faster_with_help(self) -> bool:
        alone, helped = map(median, self.seconds)
        return helped < alone

    def policy_slope(self, slope: Tensor, weight: Tensor) -> None:
        """The policy's gradient for the slope [B, A] at its actions and the weight of their log-probabilities."""
        s, net, slopes = self.shared, self.mine.policy, self.mine.policy_slopes
        a, raw_log_std = s["new_action"], net.outs[-1].chunk(2, -1)[1]
        at_x = slope * (1 - a * a) + 2 * weight * a  # the log-probability rises with x by 2 tanh(x)
        at_log_std = at_x * s["new_std"] * s["noise"] - weight
        at_log_std *= (raw_log_std >= SquashedPolicy.LOG_STD_MIN) & (raw_log_std <= SquashedPolicy.LOG_STD_MAX)
        torch.cat([at_x, at_log_std], -1, out=slopes[-1])
        for i in reversed(range(2, len(slopes))):
            net.slope_below(i, slopes[i], out=slopes[i - 1])
        self.begin(LEARN_POLICY)
        if len(slopes) > 1:
            net.slope_below(1, slopes[1], out=slopes[0])
        net.set_gradient(0, slopes[0])
        self.finish(LEARN_POLICY)

    def begin(self, task: int) -> None:
        if self.helped:
            assert self.helper is not None
            self.helper.post(task)

    def finish(self, task: int) -> None:
        if self.helped:
            assert self.helper is not None
            if self.helper.has_done():
                return
            # What it has done of this update is done again here.
            self.helper.close()
            log.warning("the process that helped to learn died or hangs; learning goes on without it")
            self.helper, self.helped = None, False
            if task in BEFORE:
                TASKS[BEFORE[task]](self.other)
        TASKS[task](self.other)


def suits(c: SACConfig) -> bool:
    """Whether updates with these settings may be done in lanes: plain networks, and SAC as it stands in the book."""
    sizes = (c.num_critics, c.target_critics, c.actor_interval, c.activation, c.network)
    as_in_the_book = sizes == (2, "min", 1, "relu", "mlp")
    return as_in_the_book and not (c.layer_norm or c.prioritized or c.h_term) and hasattr(os, "memfd_create")
