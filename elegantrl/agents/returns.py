"""Returns and advantages over a rollout.

Axes: T rollout steps, N lanes. ``next_value`` is the value of the true successor of each step, so a truncated step
bootstraps from where its episode really was and a terminated one from nothing; no trace runs across an episode's end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..imports import import_fast


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: Tensor | float,
    lam: Tensor | float,
) -> Tensor:
    """Generalised advantage estimates [T, N] (arXiv:1506.02438).

    A_t = delta_t + gamma lam A_{t+1} within an episode, delta_t = r_t + gamma V(s_{t+1}) - V(s_t).
    """
    delta_TN = reward + gamma * next_value * ~terminated - value
    trace_TN = gamma * lam * (~(terminated | truncated)).to(reward.dtype)
    return discounted_sum(delta_TN, trace_TN)


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    log_ratio: Tensor,
    gamma: Tensor | float,
    lam: Tensor | float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    weigh_advantage: bool = True,
) -> tuple[Tensor, Tensor]:
    """Value targets and policy-gradient advantages [T, N], corrected for the policy that acted (arXiv:1802.01561).

    ``log_ratio`` is log pi(a|s) - log mu(a|s). On-policy it is zero, and advantages and targets are those of ``gae``.
    A loss that contains the ratio takes advantages without it (``weigh_advantage=False``), or it would count twice.
    """
    ratio_TN = log_ratio.exp()
    rho_TN, c_TN = ratio_TN.clamp(max=rho_clip), lam * ratio_TN.clamp(max=c_clip)
    ended_TN = terminated | truncated
    bootstrap_TN = gamma * (~terminated).to(reward.dtype)
    delta_TN = rho_TN * (reward + bootstrap_TN * next_value - value)
    correction_TN = discounted_sum(delta_TN, gamma * c_TN * ~ended_TN)  # v_s - V(s)
    # r + gamma (V(s') + lambda (v_s' - V(s'))) - V(s); lambda = 1 bootstraps from the target v_s', as the paper does.
    # The successor's correction counts within the same episode and rollout only.
    carried_TN = torch.cat([lam * correction_TN[1:] * ~ended_TN[:-1], torch.zeros_like(correction_TN[-1:])])
    advantage_TN = reward + bootstrap_TN * (next_value + carried_TN) - value
    return value + correction_TN, rho_TN * advantage_TN if weigh_advantage else advantage_TN


@torch.no_grad()
def n_step_targets(
    reward: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: Tensor | float, n_step: int
) -> Tensor:
    """Sums [T, N] of up to ``n_step`` discounted rewards and the value of the last successor.

    A sum ends with the episode and with the sequence. The target with n rewards is one reward and the next step's
    target with n - 1.
    """
    one_step_TN = target_TN = reward + gamma * next_value * ~terminated
    goes_on_TN = ~(terminated | truncated)
    for _ in range(n_step - 1):
        longer_TN = torch.where(goes_on_TN[:-1], reward[:-1] + gamma * target_TN[1:], one_step_TN[:-1])
        target_TN = torch.cat([longer_TN, one_step_TN[-1:]])
    return target_TN


@torch.no_grad()
def td_lambda_targets(
    reward: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: Tensor | float,
    lam: Tensor | float,
) -> Tensor:
    """TD(lambda) targets [T, N]: x_t = r_t + gamma ((1 - lam) V(s_{t+1}) + lam x_{t+1}).

    The last step of an episode and of the sequence has no x_{t+1}: its target is r_t + gamma V(s_{t+1}).
    """
    goes_on_TN = ~(terminated | truncated)
    trace_TN = lam * torch.cat([goes_on_TN[:-1], torch.zeros_like(goes_on_TN[-1:])]).to(reward.dtype)
    term_TN = reward + gamma * (1 - trace_TN) * next_value * ~terminated
    # Not ``discounted_sum``: these targets are part of hot functions, where nothing is written in place.
    target = [term_TN[-1]]
    for term, trace in zip(term_TN[:-1].flip(0), (gamma * trace_TN[:-1]).flip(0), strict=True):
        target.append(torch.addcmul(term, trace, target[-1]))
    return torch.stack(target[::-1])


@torch.no_grad()
def discounted_sum(term: Tensor, decay: Tensor) -> Tensor:
    """x_t = term_t + decay_t * x_{t+1}, from the last row backwards; nothing flows back through it."""
    fast = import_fast("returns")
    # Under vmap a tensor stands for those of several agents and has no array.
    if fast and term.device.type == "cpu" and not torch._C._functorch.is_batchedtensor(term):
        return fast.discounted_sum(term, decay)  # type: ignore[no-any-return]
    total = term.clone()
    row, factor = total.unbind(), decay.unbind()
    for t in reversed(range(len(row) - 1)):
        row[t].add_(factor[t] * row[t + 1])
    return total
