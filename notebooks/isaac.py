# %% [markdown]
# # Isaac-style simulators
#
# A simulator steps thousands of environments at once, overwrites its buffers and resets by itself. This notebook uses a
# fake with the interface of Isaac Lab, which runs anywhere; with the real one only the function `make_task` changes.

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
import torch

import elegantrl
from elegantrl.testing import FakeIsaacLabEnv

# %% [markdown]
# ## The raw interface
#
# Two groups of observations: the policy sees the cart, the critic also sees the wind. Both are buffers: the next step
# overwrites what this one returned.

# %%
raw = FakeIsaacLabEnv(num_envs=4)
obs, _ = raw.reset(seed=0)
kept = obs["policy"]
before = kept.clone()
raw.step(torch.zeros(4, 1))
print({name: tuple(group.shape) for name, group in obs.items()})
print("what was kept has changed:", not torch.equal(kept, before))


# %% [markdown]
# ## Behind the contract
#
# A function of `num_envs` and `device` is all that training needs. For Isaac Lab it would set `cfg.scene.num_envs` and
# `cfg.sim.device` and return the environment.


# %%
def make_task(num_envs, device):
    return FakeIsaacLabEnv(num_envs, device)


env = elegantrl.make_env(make_task, 64)
elegantrl.check_env(env)
print(env.spec.obs)

# %% [markdown]
# Where an episode ends the simulator has begun the next one. The successor is then the last observation that is known.

# %%
obs = env.reset(seed=0)
while True:
    step = env.step(torch.zeros(64, 1))
    if step.truncated.any():
        break
    obs = step.obs
lane = int(step.truncated.nonzero()[0])
print("before the last action ", obs.seen[lane])
print("successor              ", step.next_obs.seen[lane])
print("of the next episode    ", step.obs.seen[lane])

# %% [markdown]
# ## Train
#
# The value network reads the wind; the policy does without.

# %%
run = elegantrl.train("ppo", make_task, num_envs=64, horizon=16, batch_size=256, max_steps=200_000, seed=0)
print(run.best_return)

# %%
policy = run.load_policy()
print(policy.act([0.2, -0.1, 3.0]))
