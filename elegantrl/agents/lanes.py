"""SAC's update with gradients derived by hand, in two lanes that may run on two cores.

Each of two critics has a lane; lane 1 also asks the policy about the successors while lane 0 asks it about the states
themselves. A minibatch that is known before the next step is taken is looked at while lane 0 acts: then lane 1 asks
about both. The lanes meet six times per update, where torch's threads would about a hundred times: where it takes long
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
    DRAW_BOTH,
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
        self.prepared: Transition | None = None
        """The minibatch that was given to both lanes."""
        self.first_task = DRAW_NEXT
        self.turn = 0
        """Updates since help was last tried."""
        self.seconds = deque([1.0], TRIAL), deque([1.0], TRIAL)
        """What the last trials took without and with help; in the middle, as the first ones take longer."""

    @torch.no_grad()
    def prepare(self, agent: AgentSAC, b: Transition, ahead: bool = True) -> None:
        """Give a minibatch to both lanes; whoever helps has the time to do more if its update does not come at once."""
        self.prepared, self.first_task = b, DRAW_BOTH if ahead else DRAW_NEXT
        self.decide()
        s, norm = self.shared, agent.policy.norm
        s["next_obs"].copy_(norm(b.next_obs))
        s["obs"].copy_(norm(b.obs))
        s["action"].copy_(b.action)
        for name in ("next_noise", "noise"):
            s[name].copy_(agent.normal_like_action(b))
        self.begin(self.first_task)

    def forget(self) -> None:
        """Let go of the minibatch that was prepared."""
        if self.prepared is not None and self.helped:
            self.finish(self.first_task)  # it must not write into the next
        self.prepared = None

    @torch.no_grad()
    def update(self, agent: AgentSAC, b: Transition) -> Metrics:
        """As ``AgentActorCritic.update``."""
        started = time.perf_counter()
        if b is not self.prepared:
            self.forget()
            self.prepare(agent, b, ahead=False)
        is_trial, is_helped = self.is_trial(), self.helped
        metrics = self.step(agent, b)
        self.prepared = None
        if is_trial:
            self.seconds[is_helped].append(time.perf_counter() - started)
        return metrics

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

    def step(self, agent: AgentSAC, b: Transition) -> Metrics:
        s, alpha = self.shared, agent.log_alpha.detach().exp()
        if self.first_task == DRAW_NEXT:
            self.mine.draw_new()
        self.finish(self.first_task)

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
        self.policy_slope(slope, alpha / len(least))
        metrics["loss/actor"] = (alpha * s["new_logp"] - least).mean()
        metrics["actor/grad_norm"] = agent.actor_step.follow(s["policy_grad"])
        metrics["policy/entropy"] = -s["new_logp"].mean()
        return metrics

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
    as_in_the_book = (c.num_critics, c.target_critics, c.actor_interval, c.activation) == (2, "min", 1, "relu")
    return as_in_the_book and not (c.layer_norm or c.prioritized or c.h_term) and hasattr(os, "memfd_create")


def may_go_on(agent: AgentSAC, b: Transition) -> bool:
    """Whether nothing has happened since that asks for autograd: other learners, compiled losses, odd batches."""
    return (
        not isinstance(agent.averaging, Ranks)
        and {"critic_loss", "actor_loss"}.isdisjoint(vars(agent))
        and len(b.reward) == agent.config.batch_size
    )
