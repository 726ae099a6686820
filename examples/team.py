"""A team of three agents that share out three landmarks: trained together, each acts on what it sees alone.

python examples/team.py
elegantrl train mappo TensorSpread --max-steps 300000     # the training alone
"""

from __future__ import annotations

import elegantrl
from elegantrl.envs import make_env

if __name__ == "__main__":
    run = elegantrl.train("mappo", "TensorSpread", num_envs=128, max_steps=300_000)
    policy = run.load_policy()
    env = make_env("TensorSpread", 1)
    names = env.spec.agent_names
    obs, total = env.reset(seed=0), 0.0  # [1, agents, numbers]
    for _ in range(env.spec.max_episode_steps or 25):
        # One call for the team; a robot of its own would call policy.act({"agent_1": what_it_sees}) and get the same.
        actions = policy.act({name: obs[0, i] for i, name in enumerate(names)})
        step = env.step(obs.new_tensor([[int(actions[name]) for name in names]]).long())
        obs, total = step.obs, total + float(step.reward.sum())
    print(f"return of an episode {total:.1f}, of training {run.best_return:.1f}")
    print(f"of each agent {run.summary['agent_returns']}")
