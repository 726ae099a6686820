"""Published scores for the tasks of the learning benchmark, each with its source and what it measures."""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """Who published, and what the figures mean."""

    name: str
    url: str
    version: str
    metric: str


class Reference(NamedTuple):
    """One published score; the note says which of several figures it is, or which version of the task it is for."""

    source: str
    score: str
    steps: str
    note: str = ""


SOURCES = {
    "zoo": Source(
        "RL Baselines3 Zoo",
        "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md",
        "22e3ff2",
        "One run each; final policy without exploration over 150,000 environment steps; mean and std over episodes",
    ),
    "CleanRL": Source(
        "CleanRL",
        "https://docs.cleanrl.dev",
        "fe8d8a0",
        "Three seeds (Pendulum ten); training episodes, exploration included, at the end; mean and std over seeds",
    ),
    "XuanCe": Source(
        "XuanCe",
        "https://github.com/agi-brain/xuance-benchmarks",
        "adec00d",
        "Five seeds, computed from the published curves: `last` is the mean of the last five evaluations, mean and std"
        " over seeds; `best` the best evaluation of a seed, mean over seeds",
    ),
    "SimbaV2": Source(
        "SimbaV2, baseline curves",
        "https://github.com/dojeon-ai/SimbaV2",
        "results/baseline",
        "Ten seeds; evaluation return at that step, mean and std over seeds",
    ),
    "TD3": Source(
        "Fujimoto et al. 2018",
        "https://arxiv.org/abs/1802.09477",
        "table 1",
        "Ten seeds; the highest average return on the way, mean and std over seeds",
    ),
    "Tianshou": Source(
        "Tianshou, MuJoCo benchmark",
        "https://github.com/thu-ml/tianshou/tree/master/examples/mujoco",
        "f240205",
        "Ten seeds; the best evaluation on the way, mean and std over seeds",
    ),
}

TWINS = {
    "TensorCartPole": "CartPole-v1",
    "TensorPendulum": "Pendulum-v1",
    "TensorSpread": "simple_spread_v3",
}
"""Environments of ours with the dynamics of another one, whose published scores they can be held against."""

REFERENCES: dict[str, tuple[Reference, ...]] = {
    "ppo/CartPole-v1": (
        Reference("zoo", "500 ± 0", "100k"),
        Reference("CleanRL", "490.0 ± 6.1", "500k"),
        Reference("XuanCe", "500 ± 0", "200k", "last"),
    ),
    "dqn/CartPole-v1": (
        Reference("zoo", "500 ± 0", "50k"),
        Reference("CleanRL", "488.7 ± 16.1", "500k"),
        Reference("XuanCe", "490 ± 15", "200k", "last"),
    ),
    "double_dqn/CartPole-v1": (Reference("XuanCe", "411 ± 99", "200k", "last"),),
    "dueling_dqn/CartPole-v1": (Reference("XuanCe", "393 ± 126", "200k", "last"),),
    "d3qn/CartPole-v1": (Reference("XuanCe", "393 ± 126", "200k", "last, dueling alone"),),
    "a2c/CartPole-v1": (
        Reference("zoo", "500 ± 0", "500k"),
        Reference("XuanCe", "353 ± 103", "200k", "last"),
    ),
    "discrete_sac/CartPole-v1": (Reference("XuanCe", "275 (seeds 247 - 317)", "200k", "last, fixed temperature"),),
    "dqn/Acrobot-v1": (
        Reference("zoo", "-77 ± 12", "100k"),
        Reference("CleanRL", "-91.5 ± 7.2", "500k"),
        Reference("XuanCe", "-93 ± 19", "200k", "last"),
    ),
    "double_dqn/Acrobot-v1": (Reference("XuanCe", "-83 ± 4", "200k", "last"),),
    "dueling_dqn/Acrobot-v1": (Reference("XuanCe", "-82 ± 3", "200k", "last"),),
    "d3qn/Acrobot-v1": (Reference("XuanCe", "-82 ± 3", "200k", "last, dueling alone"),),
    "ppo/Acrobot-v1": (
        Reference("zoo", "-74 ± 18", "1M"),
        Reference("CleanRL", "-86.4 ± 1.3", "500k"),
        Reference("XuanCe", "-500", "200k", "last"),
    ),
    "sac/Pendulum-v1": (
        Reference("zoo", "-157 ± 89", "20k"),
        Reference("XuanCe", "-220 ± 26", "200k", "last"),
    ),
    "ppo/Pendulum-v1": (
        Reference("zoo", "-172 ± 104", "100k"),
        Reference("CleanRL", "-1142 ± 136", "8M"),
        Reference("XuanCe", "-242 ± 26", "200k", "last"),
    ),
    "ddpg/Pendulum-v1": (
        Reference("zoo", "-152 ± 94", "20k"),
        Reference("XuanCe", "-216 ± 24", "200k", "last"),
    ),
    "td3/Pendulum-v1": (
        Reference("zoo", "-152 ± 90", "20k"),
        Reference("XuanCe", "-285 ± 30", "200k", "last"),
    ),
    "mod_sac/Pendulum-v1": (),
    "redq/Pendulum-v1": (),
    "sac/MountainCarContinuous-v0": (Reference("zoo", "95 ± 1", "50k"),),
    "ppo/LunarLander-v3": (
        Reference("zoo", "242 ± 32", "1M", "LunarLander-v2"),
        Reference("XuanCe", "186 ± 36", "300k", "last; best 261"),
    ),
    "d3qn/LunarLander-v3": (Reference("XuanCe", "193 ± 77", "300k", "last, dueling alone; best 254"),),
    "sac/LunarLanderContinuous-v3": (Reference("zoo", "260 ± 65", "500k", "LunarLanderContinuous-v2"),),
    "td3/LunarLanderContinuous-v3": (Reference("zoo", "207 ± 68", "300k", "LunarLanderContinuous-v2"),),
    "sac/HalfCheetah-v5": (
        Reference("SimbaV2", "6156 ± 700", "100k", "HalfCheetah-v4"),
        Reference("SimbaV2", "8593 ± 964", "300k", "HalfCheetah-v4"),
        Reference("XuanCe", "10122 ± 833", "1M", "last; best 10428"),
    ),
    "sac/Walker2d-v5": (
        Reference("XuanCe", "4310 ± 364", "1M", "last; best 4529"),
        Reference("Tianshou", "5007 ± 252", "1M", "Walker2d-v3"),
        Reference("SimbaV2", "2470 ± 1571", "300k", "Walker2d-v4"),
        Reference("SimbaV2", "4536 ± 469", "1M", "Walker2d-v4"),
        Reference("CleanRL", "3591 ± 911", "1M", "Walker2d-v4"),
    ),
    "sac/Ant-v5": (
        Reference("XuanCe", "3319 ± 621", "1M", "last; best 4194"),
        Reference("Tianshou", "5850 ± 476", "1M", "Ant-v3, contact forces zero"),
        Reference("SimbaV2", "3532 ± 1561", "300k", "Ant-v4, without contact forces"),
        Reference("SimbaV2", "5734 ± 639", "1M", "Ant-v4, without contact forces"),
    ),
    "sac/Humanoid-v5": (
        Reference("XuanCe", "3978 ± 278", "1M", "last; best 4537"),
        Reference("Tianshou", "5489 ± 81", "1M", "Humanoid-v3"),
        Reference("SimbaV2", "3015 ± 1647", "300k", "Humanoid-v4"),
        Reference("SimbaV2", "4826 ± 1593", "1M", "Humanoid-v4"),
        Reference("CleanRL", "4996 ± 686", "1M", "Humanoid-v4"),
    ),
    "sac/Swimmer-v5": (
        Reference("Tianshou", "44 ± 1", "1M", "Swimmer-v3, gamma 0.99"),
        Reference("zoo", "346", "1M", "Swimmer-v3, gamma 0.9999"),
    ),
    "sac/Reacher-v5": (Reference("Tianshou", "-2.6 ± 0.2", "1M", "Reacher-v2, best evaluation of each run"),),
    "td3/Walker2d-v5": (
        Reference("XuanCe", "4067 ± 826", "1M", "last; best 4961"),
        Reference("Tianshou", "3982 ± 275", "1M", "Walker2d-v3"),
        Reference("TD3", "4683 ± 540", "1M", "Walker2d-v1"),
        Reference("CleanRL", "4058 ± 659", "1M", "Walker2d-v4"),
    ),
    "td3/Ant-v5": (
        Reference("XuanCe", "3865 ± 1335", "1M", "last; best 4959"),
        Reference("Tianshou", "5116 ± 800", "1M", "Ant-v3, contact forces zero"),
        Reference("TD3", "4372 ± 1000", "1M", "Ant-v1"),
    ),
    "td3/Humanoid-v5": (
        Reference("XuanCe", "70", "1M", "last; best 114"),
        Reference("Tianshou", "5190 ± 179", "1M", "Humanoid-v3"),
        Reference("CleanRL", "5035 ± 22", "1M", "Humanoid-v4"),
    ),
    "td3/Swimmer-v5": (
        Reference("Tianshou", "104 ± 34", "1M", "Swimmer-v3, gamma 0.99"),
        Reference("zoo", "359", "1M", "Swimmer-v3, gamma 0.9999"),
    ),
    "td3/Reacher-v5": (
        Reference("Tianshou", "-2.7 ± 0.2", "1M", "Reacher-v2, best evaluation of each run"),
        Reference("TD3", "-3.6 ± 0.6", "1M", "Reacher-v1"),
    ),
    "td3/HalfCheetah-v5": (
        Reference("XuanCe", "8014 ± 3051", "1M", "last; best 8349"),
        Reference("TD3", "9637 ± 859", "1M", "HalfCheetah-v1"),
    ),
    "ppo/Hopper-v5": (
        Reference("zoo", "2410 ± 10", "1M", "Hopper-v3"),
        Reference("CleanRL", "2383 ± 272", "1M", "Hopper-v4"),
        Reference("XuanCe", "2068 ± 889", "1M", "last; best 2702"),
    ),
    "ppo/BipedalWalker-v3": (
        Reference("zoo", "288 ± 2", "5M"),
        Reference("CleanRL", "172 ± 96", "8M", "ten seeds"),
        Reference("XuanCe", "189 ± 96", "2M", "last; best 235"),
    ),
    "sac/BipedalWalker-v3": (
        Reference("zoo", "298 ± 33", "500k"),
        Reference("XuanCe", "204 ± 131", "2M", "last; best 320"),
    ),
    "sac/BipedalWalkerHardcore-v3": (
        Reference("zoo", "4 ± 104", "10M"),
        Reference("zoo", "235 ± 111", "2M", "TQC"),
        Reference("zoo", "122 ± 118", "100M", "PPO"),
    ),
    "td3/BipedalWalker-v3": (
        Reference("zoo", "306 ± 57", "1M"),
        Reference("XuanCe", "262 ± 47", "2M", "last; best 311"),
    ),
    "ppo/Walker2d-v5": (
        Reference("XuanCe", "3927 ± 699", "1M", "last; best 4823"),
        Reference("Tianshou", "3589 ± 757", "1M", "Walker2d-v3"),
        Reference("zoo", "3479 ± 822", "1M", "Walker2d-v3"),
        Reference("CleanRL", "2288 ± 572", "1M", "Walker2d-v4"),
    ),
    "ppo/Ant-v5": (
        Reference("XuanCe", "1121 ± 435", "1M", "last; best 1583"),
        Reference("Tianshou", "3258 ± 1079", "1M", "Ant-v3, contact forces zero"),
        Reference("zoo", "1327 ± 452", "1M", "Ant-v3"),
    ),
    "ppo/Reacher-v5": (Reference("Tianshou", "-4.1 ± 0.3", "1M", "Reacher-v2"),),
    "ppo/Humanoid-v5": (
        Reference("XuanCe", "624 ± 51", "1M", "last; best 984"),
        Reference("Tianshou", "787 ± 194", "1M", "Humanoid-v3"),
        Reference("CleanRL", "716 ± 49", "1M", "Humanoid-v4"),
    ),
    "mappo/simple_spread_v3": (Reference("XuanCe", "-58.2", "1M", "3 x the return of an agent, continuous actions"),),
    "vdn/simple_spread_v3": (Reference("XuanCe", "-53.7", "1M", "3 x the return of an agent"),),
    "qmix/simple_spread_v3": (Reference("XuanCe", "-133", "1M", "3 x the return of an agent; its QMIX diverges"),),
    "maddpg/simple_spread_v3": (Reference("XuanCe", "-51.0", "2M", "3 x the return of an agent, continuous actions"),),
    "matd3/simple_spread_v3": (Reference("XuanCe", "-59.7", "2M", "3 x the return of an agent, continuous actions"),),
}


def published(agent: str, env: str) -> str:
    """The references of a pair in one line; empty tuples in the table are pairs that were looked for in vain."""
    key = f"{agent}/{TWINS.get(env, env)}"
    found = [f"{r.source} {r.score} @{r.steps}" + (f" ({r.note})" if r.note else "") for r in REFERENCES.get(key, ())]
    if not found:
        return "none found" if key in REFERENCES else "-"
    return "; ".join(found) + (f"; all for {TWINS[env]}" if env in TWINS else "")
