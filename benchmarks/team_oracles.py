"""Scripted teams for the tensor worlds of a team, and what they and random teams score.

    python benchmarks/team_oracles.py --measure

Plays 20,000 episodes of each task with a random team and with a scripted one, both with seed 0, and writes their mean
returns (the sum over agents), catches and wins to results/team_oracles.json. A scripted policy computes actions from
observations alone; that of spread reads the observation of one agent for all, since each agent sees everything.

Axes: N lanes, G agents, P permutations, O observation.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from common import environment, write_json
from rich.console import Console
from rich.table import Table
from torch import Tensor

from elegantrl.envs import VecEnv, make_env
from elegantrl.envs.tensor import foraging, skirmish
from elegantrl.envs.tensor.tag import CATCH_REWARD
from elegantrl.tree import Tree
from elegantrl.types import Obs, mask_of, seen_part

SEED, EPISODES, LANES = 0, 20_000, 2000
BRAKE = 0.3
"""Seconds of its own velocity that a scripted agent looks ahead: it brakes before it arrives."""
NEAR = 0.03
"""An agent that will be as near as this to its goal does not push."""

Act = Callable[[Tree], Tensor]


def toward(offset: Tensor, velocity: Tensor) -> Tensor:
    """The move [...] along the axis on which a goal at ``offset`` [..., 2] is farther away, one of five."""
    ahead = offset - BRAKE * velocity
    axis = ahead.abs().argmax(-1, keepdim=True)
    distance = ahead.gather(-1, axis).squeeze(-1)
    move = 1 + 2 * axis.squeeze(-1) + (distance > 0)
    return torch.where(distance.abs() < NEAR, 0, move)


def spread(obs: Tree) -> Tensor:
    """The assignment of agents to landmarks with the least sum of distances; each agent goes straight to its own."""
    seen_NGO = seen_part(obs)
    team = seen_NGO.shape[1]
    velocity_NG2 = seen_NGO[..., :2]
    offset_NGG2 = seen_NGO[..., 4 : 4 + 2 * team].unflatten(-1, (team, 2))  # of each landmark from each agent
    orders_PG = torch.tensor(list(itertools.permutations(range(team))))
    distance_NGG = torch.linalg.vector_norm(offset_NGG2, dim=-1)
    cost_NP = distance_NGG[:, torch.arange(team), orders_PG].sum(-1)
    own_NG = orders_PG[cost_NP.argmin(1)]
    offset_NG2 = offset_NGG2.gather(2, own_NG[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
    return toward(offset_NG2, velocity_NG2)


def speaker_listener(obs: Tree) -> Tensor:
    """The speaker names the landmark of the colour it sees; the listener goes there, or waits if it heard nothing."""
    seen_N2O = seen_part(obs)
    word_N = seen_N2O[:, 0, :3].argmax(1)
    listener_NO = seen_N2O[:, 1]
    heard_N, is_heard_N = listener_NO[:, 8:11].argmax(1), listener_NO[:, 8:11].any(1)
    offset_N2 = listener_NO[:, 2:8].view(-1, 3, 2)[torch.arange(len(heard_N)), heard_N]
    move_N = torch.where(is_heard_N, toward(offset_N2, listener_NO[:, :2]), 0)
    return torch.stack([word_N, move_N], dim=1)


def tag(obs: Tree) -> Tensor:
    """Every predator runs to where the prey will be in half a second."""
    seen_NGO = seen_part(obs)
    velocity_NG2, prey_NG2, prey_velocity_NG2 = seen_NGO[..., :2], seen_NGO[..., -4:-2], seen_NGO[..., -2:]
    return toward(prey_NG2 + 0.5 * (prey_velocity_NG2 - velocity_NG2), torch.zeros_like(velocity_NG2))


def focus_fire(obs: Tree) -> Tensor:
    """All fire at the weakest enemy in range; else they go to the nearest in sight, and until then they gather."""
    assert isinstance(obs, Obs) and obs.mask is not None
    num_allies, num_enemies = obs.mask.shape[1], obs.mask.shape[2] - skirmish.FIRST_ATTACK
    ally_NGK5 = obs.seen[..., 4 : 4 + 5 * (num_allies - 1)].unflatten(-1, (num_allies - 1, 5))
    enemy_NGF6 = obs.seen[..., -6 * num_enemies :].unflatten(-1, (num_enemies, 6))
    middle_NG2 = ally_NGK5[..., 2:4].sum(2) / (1 + ally_NGK5[..., 0].sum(2, keepdim=True))  # of those in sight
    is_apart_NG = skirmish.SIGHT * middle_NG2.abs().amax(-1) > skirmish.SPEED
    action_NG = torch.where(is_apart_NG, side_of(middle_NG2), skirmish.STOP)

    is_seen_NGF = enemy_NGF6[..., 0] > 0
    nearest_NG = enemy_NGF6[..., 1].masked_fill(~is_seen_NGF, math.inf).argmin(-1)
    offset_NG2 = enemy_NGF6[..., 2:4].gather(2, nearest_NG[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
    action_NG = torch.where(is_seen_NGF.any(-1), side_of(offset_NG2), action_NG)

    in_range_NGF = obs.mask[..., skirmish.FIRST_ATTACK :]
    # The lower number decides between enemies of the same health, so that all choose the same one.
    health_NGF = enemy_NGF6[..., 4] + 1e-3 * torch.arange(num_enemies)
    weakest_NG = health_NGF.masked_fill(~in_range_NGF, math.inf).argmin(-1)
    action_NG = torch.where(in_range_NGF.any(-1), skirmish.FIRST_ATTACK + weakest_NG, action_NG)
    is_allowed_NG = obs.mask.gather(2, action_NG.unsqueeze(2)).squeeze(2)
    action_NG = torch.where(is_allowed_NG, action_NG, skirmish.STOP)
    return torch.where(obs.mask[..., skirmish.NOOP], skirmish.NOOP, action_NG)


def side_of(offset: Tensor) -> Tensor:
    """The move [...] of a skirmish that follows the larger component of ``offset`` [..., 2]."""
    axis = offset.abs().argmax(-1, keepdim=True)
    is_negative = (offset.gather(-1, axis) < 0).squeeze(-1).long()
    return skirmish.FIRST_MOVE + torch.where(axis.squeeze(-1) == 1, 0, 2) + is_negative


def forage(obs: Tree) -> Tensor:
    """All go to different sides of the food that they can reach soonest together, and load it when all are there."""
    seen_NGO = seen_part(obs)
    num_lanes, team = seen_NGO.shape[:2]
    first_NX = seen_NGO[:, 0]
    food_NF3, agent_NG3 = first_NX[:, : -3 * team].unflatten(1, (-1, 3)), first_NX[:, -3 * team :].unflatten(1, (-1, 3))
    side_42 = torch.tensor(foraging.SIDES)
    cell_NF42 = food_NF3[:, :, None, :2] + side_42
    offset_NFG42 = cell_NF42.unsqueeze(2) - agent_NG3[:, None, :, None, :2]
    orders_PG = torch.tensor(list(itertools.permutations(range(4), team)))
    steps_NFGP = offset_NFG42.abs().sum(-1)[:, :, torch.arange(team), orders_PG].transpose(2, 3)
    steps_NFP = steps_NFGP.amax(2).masked_fill(food_NF3[..., 2:] == 0, math.inf)
    food_N, order_N = steps_NFP.flatten(1).argmin(1) // len(orders_PG), steps_NFP.flatten(1).argmin(1) % len(orders_PG)
    lane_N = torch.arange(num_lanes)
    offset_NG2 = offset_NFG42[lane_N, food_N][lane_N[:, None], torch.arange(team), orders_PG[order_N]]
    place_NG2 = agent_NG3[..., :2]
    target_NG42 = place_NG2.unsqueeze(2) + side_42
    is_blocked_NG4 = (target_NG42.unsqueeze(3) == food_NF3[:, None, None, :, :2]).all(-1).any(-1)
    gain_NG4 = (offset_NG2.unsqueeze(2) * side_42).sum(-1).masked_fill(is_blocked_NG4, -math.inf)
    move_NG = foraging.FIRST_MOVE + gain_NG4.argmax(-1)
    is_there_NG = (offset_NG2 == 0).all(-1)
    done_N1 = is_there_NG.all(1, keepdim=True)
    return torch.where(done_N1, foraging.LOAD, torch.where(is_there_NG, foraging.WAIT, move_NG))


ORACLES: dict[str, Act] = {
    "TensorSpread": spread,
    "TensorSpeakerListener": speaker_listener,
    "TensorTag": tag,
    "TensorForaging": forage,
    "TensorSkirmish": focus_fire,
}


def random_team(env: VecEnv, seed: int) -> Act:
    """Uniform over the options that the masks allow."""
    generator = torch.Generator().manual_seed(seed)
    shape = (env.spec.num_envs, *env.spec.team)

    def act(obs: Tree) -> Tensor:
        mask = mask_of(obs)
        if mask is None:
            return env.spec.action.random(shape, generator)
        return torch.multinomial(mask.flatten(0, 1).float(), 1, generator=generator).view(shape)

    return act


def play(env: VecEnv, act: Act, episodes: int, seed: int = SEED) -> dict[str, float]:
    """The first ``episodes / N`` episodes of each lane: none is left out for being long."""
    num_lanes = env.spec.num_envs
    each = episodes // num_lanes
    obs, done = env.reset(seed), torch.zeros(num_lanes, dtype=torch.int64)
    running, returns, wins = torch.zeros(num_lanes, dtype=torch.float64), [], []
    with torch.inference_mode():
        while bool((done < each).any()):
            step = env.step(act(obs))
            running += step.reward.sum(1)
            ended = (step.terminated | step.truncated) & (done < each)
            returns.append(running[ended])
            if step.won is not None:
                wins.append(step.won[ended])
            running[step.terminated | step.truncated] = 0
            done, obs = done + ended, step.obs
    total = torch.cat(returns)
    score = {"episodes": len(total), "return": total.mean().item(), "std": total.std().item()}
    if wins:
        score["win_rate"] = torch.cat(wins).double().mean().item()
    if env.spec.name == "TensorTag":
        score["catches"] = score["return"] / (CATCH_REWARD * (env.spec.num_agents or 1))
    return score


def measure(episodes: int) -> dict[str, Any]:
    table = Table(title=f"{episodes:,} episodes, seed {SEED}: sum of the returns of all agents", title_justify="left")
    for column in ("task", "random", "scripted", "further"):
        table.add_column(column)
    results: dict[str, Any] = {}
    for name, oracle in ORACLES.items():
        env = make_env(name, min(LANES, episodes))
        random, scripted = play(env, random_team(env, SEED), episodes), play(env, oracle, episodes)
        results[name] = {"random": random, "oracle": scripted}
        more = [f"{key} {random[key]:.3f}, {scripted[key]:.3f}" for key in ("win_rate", "catches") if key in random]
        table.add_row(name, f"{random['return']:.2f}", f"{scripted['return']:.2f}", "; ".join(more))
    Console(width=120).print(table)
    return {"seed": SEED, "episodes": episodes, "tasks": results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", required=True, help="play and write the results")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    options = parser.parse_args()
    print(write_json("team_oracles.json", measure(options.episodes) | {"environment": environment()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
