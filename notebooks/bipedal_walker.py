# %% [markdown]
# # BipedalWalker, in four layouts
#
# The same training in one process, in worker processes, with several learners, and as a tournament.

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

TASK = "BipedalWalker-v3"

# %% [markdown]
# ## One process

# %%
run = elegantrl.train("ppo", TASK, seed=0, num_envs=16, max_steps=1_000_000)
print(run.best_return)

# %% [markdown]
# ## Worker processes
#
# Two workers, each with half of the environments. With the same number of groups the result is the same to the bit,
# whatever the number of workers is.

# %%
run = elegantrl.train("ppo", TASK, seed=0, num_envs=16, num_groups=2, num_workers=2, max_steps=200_000)
print(run.summary["executor"], run.summary["steps_per_second"])

# %% [markdown]
# ## Several learners
#
# They share every batch and average their gradients, each on a GPU of its own if `device="cuda"`.

# %%
run = elegantrl.train("ppo", TASK, seed=0, num_envs=16, num_groups=2, num_learners=2, max_steps=100_000)
print(run.best_return)

# %% [markdown]
# ## A tournament
#
# Members of two algorithms; copies of the best replace the others, with changed hyper-parameters.

# %%
result = elegantrl.evolve(TASK, agents=("ppo", "sac"), members=4, periods=4, period_steps=50_000)
print(result.best_return, result.state.champion.run.agent)

# %% [markdown]
# The documented names of the public ElegantRL do the same:

# %%
from elegantrl.run import AgentPPO, Arguments, get_gym_env_args, gym, train_and_evaluate

args = Arguments(AgentPPO, env_func=gym.make, env_args=get_gym_env_args(gym.make(TASK), if_print=False))
args.gamma, args.break_step, args.cwd = 0.98, 100_000, "runs/bipedal_documented"
train_and_evaluate(args)
