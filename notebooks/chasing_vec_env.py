# %% [markdown]
# # A vector environment of tensors: chasing
#
# Thousands of environments as one tensor program, on a CPU or a GPU.

# %%
# Only on Colab: write the address of the repository that this notebook comes from. Elsewhere nothing happens here.
import subprocess
import sys

REPOSITORY = ""  # https://...
if "google.colab" in sys.modules:
    if not REPOSITORY:
        raise ValueError("REPOSITORY is empty: write the address from which you cloned elegantrl")
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", f"elegantrl @ git+{REPOSITORY}"])

# %%
import time

import torch
from torch import Tensor

import elegantrl
from elegantrl.envs.tensor import TensorEnv
from elegantrl.types import ActionSpec

# %% [markdown]
# ## The environment
#
# The state of a lane is a row: position and velocity of the chaser, then of its target. `initial` makes first states,
# `dynamics` makes a step. Time limits, resets and saving are done by the base class.


# %%
class Chase(TensorEnv):
    obs_dim = 8
    action = ActionSpec(dim=2)
    max_episode_steps = 100
    target_return = 6.5

    def initial(self, num_rows: int) -> Tensor:
        normal = torch.randn(2, num_rows, 2, generator=self.generator, device=self.device)
        direction, drift = torch.nn.functional.normalize(normal, dim=2)
        still = torch.zeros_like(direction)
        return torch.cat([still, still, 8 * direction, 0.1 * drift], dim=1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chaser, velocity, target, drift = state.chunk(4, dim=1)
        before = (target - chaser).norm(dim=1)
        velocity = 0.8 * velocity + 0.08 * action
        chaser, target = chaser + velocity, target + drift
        after = (target - chaser).norm(dim=1)
        reward = before - after - 0.01 * action.square().sum(1)
        return torch.cat([chaser, velocity, target, drift], dim=1), reward, after < 1


elegantrl.check_env(Chase(num_envs=8))

# %% [markdown]
# ## Its speed

# %%
for lanes in (1, 64, 4096):
    env = Chase(num_envs=lanes)
    env.reset(seed=0)
    action = torch.zeros(lanes, 2)
    start = time.perf_counter()
    for _ in range(50):
        env.step(action)
    print(f"{lanes:5} lanes: {50 * lanes / (time.perf_counter() - start):12,.0f} steps/s")

# %% [markdown]
# ## Train

# %%
run = elegantrl.train("ppo", Chase, num_envs=512, horizon=32, batch_size=2048, lr=1e-3, max_steps=1_000_000)
print(f"best return {run.best_return:.2f} in {run.summary['wall_seconds']:.0f} s")

# %% [markdown]
# ## A population on one device
#
# Four members with different learning rates as one program.

# %%
result = elegantrl.train_population(
    "ppo", Chase, members=4, num_envs=64, period_steps=65_536, max_steps=262_144, lr=[1e-4, 3e-4, 1e-3, 3e-3]
)
print([round(score, 2) for score in result.returns], "champion", result.champion)
