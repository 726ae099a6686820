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
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..nets.layers import flatten_
from ..nets.policies import SquashedPolicy
from ..types import Metrics, Transition
from .averaging import Ranks
from .sides import (
    BEFORE,
    CONTROL_BYTES,
    LEARN,
    LEARN_POLICY,
    LOOK_AHEAD,
    NEW_VALUE,
    SLOPE,
    TASKS,
    VALUES,
    Drawn,
    Side,
    Sizes,
    least_of,
)

if TYPE_CHECKING:
    from .sac import AgentSAC, SACConfig

log = logging.getLogger(__name__)

TRIAL, PERIOD = 5, 300
"""Updates that are tried with and without help, and after how many to try again."""


class Help(Protocol):
    """Somebody else who does the tasks of lane 1."""

    def is_ready(self) -> bool: ...

    def post(self, task: int) -> None: ...

    def has_done(self) -> bool:
        """Wait for the task that was posted; False if there is no hope."""

    def close(self) -> None: ...


class Lanes:
    """Updates of an agent whose parameters have moved into memory that a helper can share."""

    def __init__(self, agent: AgentSAC, obs_dim: int):
        c = agent.config
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
        self.helper: Help | None = None
        """Who may help from now on."""
        self.helped = False
        self.num_updates = 0
        """Since there was somebody to ask."""
        self.seconds = deque([1.0], TRIAL), deque([1.0], TRIAL)
        """What the last trials took without and with help; in the middle, as the first ones take longer."""

    def update(self, agent: AgentSAC, b: Transition) -> Metrics:
        """As ``AgentActorCritic.update``."""
        if self.helper is None or not self.helper.is_ready():
            with torch.no_grad():
                return self.step(agent, b)
        turn = self.num_updates % PERIOD
        self.num_updates += 1
        if turn < 2 * TRIAL:
            self.helped = turn >= TRIAL
        else:
            self.helped = self.is_faster_with_help()
        is_helped, started = self.helped, time.perf_counter()
        with torch.no_grad():
            metrics = self.step(agent, b)
        if turn < 2 * TRIAL:
            self.seconds[is_helped].append(time.perf_counter() - started)
        return metrics

    def is_faster_with_help(self) -> bool:
        alone, helped = map(median, self.seconds)
        return helped < alone

    def step(self, agent: AgentSAC, b: Transition) -> Metrics:
        s, norm = self.shared, agent.policy.norm
        s["next_obs"].copy_(norm(b.next_obs))
        s["next_noise"].copy_(agent.normal_like_action(b))
        self.begin(LOOK_AHEAD)
        s["obs"].copy_(norm(b.obs))
        s["action"].copy_(b.action)
        noise = agent.normal_like_action(b)
        alpha = agent.log_alpha.detach().exp()
        drawn = self.mine.draw(s["obs"], noise)
        s["new_action"].copy_(drawn.action)
        self.finish(LOOK_AHEAD)

        self.begin(VALUES)
        target_q, q = self.mine.judge()
        self.finish(VALUES)
        wanted = b.reward + b.discount * (torch.minimum(target_q, s["target_q"]) - alpha * s["next_logp"])
        error = q - wanted
        torch.sub(s["q"], wanted, out=s["error"])
        self.begin(LEARN)
        self.mine.learn(error)
        self.finish(LEARN)
        critic_loss = 0.5 * (error.square().mean() + s["error"].square().mean())
        metrics = {"loss/critic": critic_loss, "critic/q": 0.5 * (q.mean() + s["q"].mean())}
        metrics["critic/grad_norm"] = agent.critic_step.follow(s["critic_grad"])

        self.begin(NEW_VALUE)
        s["first_q"].copy_(self.mine.judge_new())
        self.finish(NEW_VALUE)
        least, num_least = least_of(s["first_q"], s["second_q"])
        self.begin(SLOPE)
        slope = self.mine.climb(s["first_q"], least, num_least)
        self.finish(SLOPE)
        slope += s["slope"]
        self.policy_slope(slope, drawn, noise, alpha / len(noise))
        metrics["loss/actor"] = (alpha * drawn.logp - least).mean()
        metrics["actor/grad_norm"] = agent.actor_step.follow(s["policy_grad"])
        metrics["policy/entropy"] = -drawn.logp.mean()
        return metrics

    def policy_slope(self, slope: Tensor, drawn: Drawn, noise: Tensor, weight: Tensor) -> None:
        """The policy's gradient for the slope [B, A] at its actions and the weight of their log-probabilities."""
        a = drawn.action
        at_x = slope * (1 - a * a) + 2 * weight * a  # the log-probability rises with x by 2 tanh(x)
        at_log_std = at_x * drawn.std * noise - weight
        lowest, highest = SquashedPolicy.LOG_STD_MIN, SquashedPolicy.LOG_STD_MAX
        at_log_std *= (drawn.raw_log_std >= lowest) & (drawn.raw_log_std <= highest)
        net, slopes = self.mine.learning_policy, self.mine.policy_slopes
        slope = torch.cat([at_x, at_log_std], -1, out=slopes[-1] if slopes else None)
        for i in reversed(range(2, len(net.layers))):
            slope = net.slope_below(i, slope, out=slopes[i - 2])
        self.begin(LEARN_POLICY)
        if slopes:
            slope = net.slope_below(1, slope)
        net.set_gradient(0, slope)
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
    as_in_the_book = (c.num_critics, c.target_critics, c.actor_interval, c.activation) == (2, "min", 1, "relu")
    return as_in_the_book and not (c.layer_norm or c.prioritized or c.h_term) and hasattr(os, "memfd_create")


def may_go_on(agent: AgentSAC, b: Transition) -> bool:
    """Whether nothing has happened since that asks for autograd: other learners, compiled losses, odd batches."""
    return (
        not isinstance(agent.averaging, Ranks)
        and {"critic_loss", "actor_loss"}.isdisjoint(vars(agent))
        and len(b.reward) == agent.config.batch_size
    )
