# %% [markdown]
# # Steadier learning
#
# The same settings with another seed can give another result. This notebook measures how much, tries two remedies and
# makes one policy of several. It takes some minutes on one core.

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
import statistics
from pathlib import Path

from IPython.display import Image

import elegantrl
from elegantrl.report.plot import plot_runs

SEEDS = range(5)
FOLDER = Path("runs/stability")
LENGTH = {"max_steps": 60_000, "target_return": float("inf")}  # no run stops early


def train_seeds(name, **settings):
    """A run for each seed; prints the returns of their last evaluations."""
    runs = []
    for seed in SEEDS:
        folder = FOLDER / f"{name}-{seed}"
        run = elegantrl.train("ppo", "TensorPendulum", seed=seed, run_dir=folder, verbose=False, **LENGTH, **settings)
        runs.append(run)
    last = [run.summary["final_return"] for run in runs]
    print(f"{name}: mean {statistics.fmean(last):.0f}, standard deviation {statistics.stdev(last):.0f}")
    return runs


# %% [markdown]
# ## How much do seeds differ?
#
# The budget is short, so that some runs are not done yet.

# %%
plain = train_seeds("plain")

# %% [markdown]
# ## Less initial noise, and advantages computed again
#
# `log_std_init` is the logarithm of the deviation of actions at the start. With `recompute_advantage` advantages are
# computed again before each epoch, with the values learned by then.

# %%
calm = train_seeds("calm", log_std_init=-0.5, recompute_advantage=True)

# %% [markdown]
# ## The H-term
#
# It raises the probability of good windows of recent trajectories.

# %%
h_term = train_seeds("h_term", h_term=True)

# %% [markdown]
# ## All curves
#
# Runs with the same settings are seeds of one curve: the interquartile mean with a 95 % bootstrap interval. Five seeds
# decide little; `python benchmarks/stability.py` takes ten on six tasks.

# %%
Image(plot_runs([run.run_dir for run in [*plain, *calm, *h_term]], FOLDER / "curves.png"))

# %% [markdown]
# ## Several policies as one
#
# Actions are averaged. An ensemble is often better than its mean member, and needs no choice among seeds.

# %%
members = [run.load_policy().evaluate(episodes=50).mean for run in plain]
ensemble = elegantrl.TrainedPolicy.ensemble([run.run_dir for run in plain])
print(f"members {[round(score) for score in members]}, mean {statistics.fmean(members):.0f}")
print(f"ensemble {ensemble.evaluate(episodes=50).mean:.0f}")
