"""What the drivers of other systems share: settings, networks and the environment that tells the rule.

Each module here has one function, ``train(env, seed, settings)``, which trains PPO in this process until the rule of
threshold_run.py ends it. The rule is told from inside the environment (`Watched`), so that it sees every episode with
its own reward, whatever the library makes of it. Settings and networks are those of RL Baselines3 Zoo, for Hopper the
defaults with eight environments, as in `peers.baselines`; exceptions are in `OWN`. The libraries' own examples were not
reproduced: one run each of something close (skrl on Pendulum, without its squashed mean; RLlib on CartPole, with eight
environments) learnt more slowly on a busy machine.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
from torch import nn

if TYPE_CHECKING:
    from threshold_run import Rule

FOREVER = 10**9


class Ppo(NamedTuple):
    """Settings in one vocabulary; each driver says them in the words of its library."""

    envs: int
    steps: int
    """Of each environment between updates."""
    batch: int
    epochs: int
    gamma: float
    gae_lambda: float
    learning_rate: float
    entropy: float = 0.0
    value: float = 0.5
    normalize: bool = False


ZOO = {
    "CartPole-v1": Ppo(8, 32, 256, 20, 0.98, 0.8, 1e-3),
    "Pendulum-v1": Ppo(4, 1024, 64, 10, 0.9, 0.95, 1e-3),
    "LunarLander-v3": Ppo(16, 1024, 64, 4, 0.999, 0.98, 3e-4, entropy=0.01),
    "Hopper-v5": Ppo(8, 256, 64, 10, 0.99, 0.95, 3e-4, normalize=True),
}
HIDDEN = (64, 64)
SHORT_ROUNDS = Ppo(4, 512, 128, 10, 0.9, 0.95, 1e-3)
"""For Pendulum: with the others PufferLib and MushroomRL missed it in 60 s on one seed of two, and RSL-RL and PFRL were
slower on the one seed tried."""
OWN = {
    ("rllib", "CartPole-v1"): Ppo(8, 256, 256, 10, 0.98, 0.9, 1e-3),  # a round costs it much: longer ones end sooner
    ("pufferlib", "LunarLander-v3"): Ppo(16, 256, 512, 10, 0.99, 0.95, 1e-3, entropy=0.01),  # gets further
    **{(name, "Pendulum-v1"): SHORT_ROUNDS for name in ("pufferlib", "mushroom_rl", "rsl_rl", "pfrl")},
}


class Watched(gym.Wrapper[Any, Any, Any, Any]):
    """Tells the rule about every episode; inside of whatever normalises, clips or resets.

    Rule and count are of the class, for all environments: RLlib copies what it makes environments from.
    """

    rule: Rule
    steps = 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.total = 0.0
        return self.env.reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if Watched.steps == 0:
            self.rule.start()
        Watched.steps += 1  # of all environments
        seen, reward, terminated, truncated, info = self.env.step(action)
        self.total += float(reward)
        if terminated or truncated:
            self.rule.see([self.total], Watched.steps)
        return seen, reward, terminated, truncated, info


def make(env: str, clip: bool = True) -> gym.Env[Any, Any]:
    """A watched environment, which takes any action and clips it, as Stable-Baselines3 does."""
    made = Watched(gym.make(env))
    return gym.wrappers.ClipAction(made) if clip and isinstance(made.action_space, gym.spaces.Box) else made


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """With orthogonal initial weights, as in Stable-Baselines3."""
    sizes = [inputs, *HIDDEN]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
        nn.init.orthogonal_(layers[-2].weight, 2**0.5)
    layers.append(nn.Linear(sizes[-1], outputs))
    nn.init.orthogonal_(layers[-1].weight, gain)
    for layer in layers[::2]:
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
