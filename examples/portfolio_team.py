"""Three agents manage one portfolio: each weighs its own part of the assets, and they share one reward.

python examples/portfolio_team.py
elegantrl train mappo examples.portfolio_team:Desks       # the same from the command line, in the repository's folder

The market is made up: each asset has a hidden drift that changes slowly, and a noisy signal shows it. Prices of real
assets cannot be predicted in this way, so nothing here says anything about real trading.
"""

from __future__ import annotations

import torch
from torch import Tensor

import elegantrl
from elegantrl.envs import make_env
from elegantrl.envs.tensor import TensorEnv
from elegantrl.types import ActionSpec, Leaf, Obs

DESKS, ASSETS = 3, 2  # assets of each desk
COST = 0.001  # of each unit of weight that is traded
DRIFT, NOISE, SIGNAL = 0.01, 0.01, 0.005


class Desks(TensorEnv):
    """The state of a lane: drifts, signals and weights of all assets, in a row each."""

    name, num_agents, agent_names, max_episode_steps = "Desks", DESKS, ("stocks", "bonds", "metals"), 30
    obs = Obs(Leaf((DESKS, 2 * ASSETS)), state=Leaf((2 * DESKS * ASSETS,)))  # type: ignore[arg-type]
    action = ActionSpec(dim=ASSETS)

    def initial(self, num_rows: int) -> Tensor:
        drift = DRIFT * self.normal(num_rows)
        even = torch.full_like(drift, 1 / drift.shape[1])
        return torch.cat([drift, drift + SIGNAL * self.normal(num_rows), even], 1)

    def normal(self, num_rows: int) -> Tensor:
        return torch.randn(num_rows, DESKS * ASSETS, generator=self.generator, device=self.device)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        drift, _, before = state.chunk(3, 1)
        weights = (4 * action.flatten(1)).softmax(1)  # the numbers of all desks decide together
        growth = (weights * (drift + NOISE * self.normal(len(state))).exp()).sum(1).log()
        reward = 100 * (growth - COST * (weights - before).abs().sum(1))  # of the portfolio, in percent
        drift = 0.95 * drift + 0.05**0.5 * DRIFT * self.normal(len(state))
        after = torch.cat([drift, drift + SIGNAL * self.normal(len(state)), weights], 1)
        shares = (reward / DESKS).unsqueeze(1).expand(-1, DESKS)  # one reward, an equal share for each desk
        return after, shares, torch.zeros(len(state), dtype=torch.bool, device=self.device)

    def observe(self, state: Tensor) -> Obs:
        """A desk sees the signals and weights of its own assets; the state for the central value shows all."""
        _, signal, weights = state.chunk(3, 1)
        parts = [x.reshape(len(state), DESKS, ASSETS) for x in (100 * signal, 6 * weights)]
        return Obs(torch.cat(parts, 2), state=torch.cat([100 * signal, 6 * weights], 1))


def equal_weights(episodes: int = 512, seed: int = 1) -> float:
    """The mean return of a portfolio that is never changed."""
    env = make_env(Desks, episodes)
    env.reset(seed)
    steps = [env.step(torch.zeros(episodes, DESKS, ASSETS)) for _ in range(env.spec.max_episode_steps or 0)]
    return float(sum(step.reward.sum() for step in steps)) / episodes


if __name__ == "__main__":
    elegantrl.check_env(Desks(num_envs=8))
    run = elegantrl.train("mappo", Desks, num_envs=64, max_steps=60_000, eval={"episodes": 256})
    print(f"log return of an episode: {run.best_return:.1f} %, with equal weights {equal_weights():.1f} %")
