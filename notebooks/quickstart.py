# %% [markdown]
# # Quickstart: Pendulum
#
# Train SAC until a pendulum stands upright, look at the curve, and use the policy. It takes some minutes on one core.

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
import gymnasium as gym

import elegantrl

# %% [markdown]
# ## Train
#
# Tuned settings for this pair ship with the library; the first line of the output names them. The run stops when the
# lower end of the 95 % interval of the mean return reaches -170.

# %%
run = elegantrl.train("sac", "Pendulum-v1", seed=0)

# %%
print(
    f"best return {run.best_return:.0f} after {run.summary['env_steps']:,} steps, because: {run.summary['stop_reason']}"
)

# %% [markdown]
# ## The learning curve

# %%
import numpy as np
from matplotlib import pyplot as plt

steps, mean, std, *_ = np.load(run.run_dir / "recorder.npy").T
plt.plot(steps, mean)
plt.fill_between(steps, mean - std, mean + std, alpha=0.2)
plt.xlabel("environment steps")
plt.ylabel("return")
plt.show()

# %% [markdown]
# ## Use the policy
#
# `policy.act` takes an observation of the environment and returns an action in its units.

# %%
policy = run.load_policy()
env = gym.make("Pendulum-v1")
obs, _ = env.reset(seed=1)
total, ended = 0.0, False
while not ended:
    obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
    total, ended = total + float(reward), terminated or truncated
print(f"one episode: {total:.0f}")

# %%
score = policy.evaluate(episodes=20)
print(f"20 episodes: {score.mean:.0f}, standard deviation {score.std:.0f}")

# %% [markdown]
# ## Go on
#
# The same call with `resume=True` and a larger budget continues the run bit for bit.

# %%
longer = elegantrl.train(
    "sac",
    "Pendulum-v1",
    seed=0,
    run_dir=run.run_dir,
    resume=True,
    max_steps=run.summary["env_steps"] + 1000,
    target_return=float("inf"),
)
print(longer.summary["env_steps"])
