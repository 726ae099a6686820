# %% [markdown]
# # A population that tunes itself
#
# Name an environment; algorithms and hyper-parameters are found.

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
import elegantrl

# %% [markdown]
# ## Find an agent
#
# Members of several algorithms that fit the task train in periods. A new member is a copy of a good one with changed
# hyper-parameters.

# %%
result = elegantrl.evolve("CartPole-v1", members=4, periods=4, seed=0)

# %%
for entry in result.state.board:
    run = entry.run
    print(f"{entry.score:7.1f}  {entry.member}  {run.agent:5}  {run.steps:7,} steps  lr {run.hypers['lr']:.1e}")

# %% [markdown]
# ## Its champion and its ensemble

# %%
print("champion", result.load_policy().evaluate(episodes=20).mean)
print("ensemble", result.load_ensemble().evaluate(episodes=20).mean)

# %% [markdown]
# ## Where did the champion come from?

# %%
state = elegantrl.read_population(result.url)
for member in state.members.values():
    print(member.id, member.agent, "from", member.parent, [round(point.score, 1) for point in member.curve])

# %% [markdown]
# ## Generations
#
# All members are compared at the end of each period; with pods, each member is several runs that are fused.

# %%
result = elegantrl.evolve(
    "TensorPendulum", agents=("ppo",), mode="generational", members=4, periods=3, pods=2, period_steps=20_000
)
print(result.best_return)
