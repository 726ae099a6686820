# %% [markdown]
# # A team of agents
#
# Three agents share out three landmarks. They are trained together and act alone.

# %%
# Only on Colab: write the address of the repository that this notebook comes from. Elsewhere nothing happens here.
import subprocess
import sys

REPOSITORY = ""  # https://...
if "google.colab" in sys.modules:
    if not REPOSITORY:
        raise ValueError("REPOSITORY is empty: write the address from which you cloned elegantrl")
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", f"elegantrl[marl] @ git+{REPOSITORY}"])

# %%
import elegantrl

# %% [markdown]
# ## Two algorithms
#
# MAPPO has a value network that sees the whole team; QMIX mixes the agents' values. Returns are sums over the agents.

# %%
mappo = elegantrl.train("mappo", "TensorSpread", seed=0)

# %%
qmix = elegantrl.train("qmix", "TensorSpread", seed=0, max_steps=500_000)

# %%
for run in (mappo, qmix):
    print(run.summary["agent"], run.best_return, run.summary["agent_returns"])

# %% [markdown]
# ## Acting alone
#
# Each agent gets its own observation and nothing else.

# %%
policy = mappo.load_policy()
env = elegantrl.make_env("TensorSpread", 1)
names = env.spec.agent_names
obs, total = env.reset(seed=0), 0.0
for _ in range(env.spec.max_episode_steps):
    actions = {name: policy.act({name: obs[0, i]})[name] for i, name in enumerate(names)}
    step = env.step(obs.new_tensor([[int(actions[name]) for name in names]]).long())
    obs, total = step.obs, total + float(step.reward.sum())
print(f"return of one episode: {total:.1f}")

# %% [markdown]
# ## The task of another library
#
# TensorSpread has the dynamics of `simple_spread_v3` of the package mpe2, so a policy can be scored there.

# %%
print(policy.evaluate(episodes=20, env="mpe2:simple_spread_v3").mean)
