# %% [markdown]
# # LunarLander with continuous actions
#
# Three algorithms on one task, compared by steps and by time.

# %%
# Only on Colab: write the address of the repository that this notebook comes from. Elsewhere nothing happens here.
import subprocess
import sys

REPOSITORY = ""  # https://...
if "google.colab" in sys.modules:
    if not REPOSITORY:
        raise ValueError("REPOSITORY is empty: write the address from which you cloned elegantrl")
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", f"elegantrl[box2d] @ git+{REPOSITORY}"])

# %%
import elegantrl

TASK = "LunarLanderContinuous-v3"

# %% [markdown]
# ## PPO
#
# On-policy: many environments, cheap updates, many steps.

# %%
ppo = elegantrl.train("ppo", TASK, seed=0, max_steps=600_000)

# %% [markdown]
# ## SAC and ModSAC
#
# Replay: fewer steps, each of them more expensive. ModSAC moves its actor less often while its critics are inaccurate.

# %%
sac = elegantrl.train("sac", TASK, seed=0, max_steps=150_000)

# %%
mod_sac = elegantrl.train("mod_sac", TASK, seed=0, max_steps=150_000, num_envs=4, lr=7e-4)

# %% [markdown]
# ## Compare

# %%
for run in (ppo, sac, mod_sac):
    s = run.summary
    print(f"{s['agent']:8} best {run.best_return:7.1f}  {s['env_steps']:8,} steps  {s['wall_seconds']:7.1f} s")

# %% [markdown]
# ## Two policies as one
#
# Continuous actions are averaged. An ensemble is often steadier than its members.

# %%
both = elegantrl.TrainedPolicy.ensemble([sac.run_dir, mod_sac.run_dir])
print(f"both together: {both.evaluate(episodes=20).mean:.1f}")
