"""Every documented name and the module of this package that defines it."""

from __future__ import annotations

from typing import Any

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "AgentA2C": ("a2c", {}),
    "AgentDiscreteA2C": ("a2c", {}),
    "AgentPPO": ("ppo", {}),
    "AgentDiscretePPO": ("ppo", {}),
    "AgentDQN": ("dqn", {}),
    "AgentDoubleDQN": ("dqn", {"double": True}),
    "AgentDuelingDQN": ("dqn", {"dueling": True}),
    "AgentD3QN": ("dqn", {"double": True, "dueling": True}),
    "AgentSAC": ("sac", {}),
    "AgentDiscreteSAC": ("discrete_sac", {}),
    "AgentModSAC": ("mod_sac", {}),
    "AgentREDQ": ("redq", {}),
    "AgentDDPG": ("ddpg", {}),
    "AgentTD3": ("td3", {}),
    "AgentPPO_H": ("ppo", {"h_term": True}),
    "AgentPPOHterm": ("ppo", {"h_term": True}),
    "AgentSAC_H": ("sac", {"h_term": True}),
    "AgentReSACHtermK": ("sac", {"h_term": True}),
    "AgentDDPGHterm": ("ddpg", {"h_term": True}),
    "AgentVDN": ("vdn", {}),
    "AgentQMix": ("qmix", {}),
    "AgentMADDPG": ("maddpg", {}),
    "AgentMATD3": ("matd3", {}),
    "AgentMAPPO": ("mappo", {}),
}
"""Documented name -> registered agent and the settings that the name implies."""

CONFIG = ("Arguments", "Config", "build_env", "get_gym_env_args", "kwargs_filter")

TRAINING = (
    "train_agent",
    "train_agent_single_process",
    "train_agent_multiprocessing",
    "train_agent_multiprocessing_multi_gpu",
    "train_and_evaluate",
    "train_and_evaluate_mp",
)

NETS = (
    "QNet", "QNetDuel", "QNetTwin", "QNetTwinDuel", "Actor", "ActorSAC", "ActorPPO", "ActorDiscretePPO", "Critic",
    "CriticTwin", "CriticPPO",
)  # fmt: skip

NAMES: dict[str, str] = {
    "Arguments": "config",
    "Config": "config",
    "build_env": "envs",
    "get_gym_env_args": "envs",
    "kwargs_filter": "envs",
    "ChasingEnv": "envs",
    "ChasingVecEnv": "envs",
    "PendulumEnv": "envs",
    "StockTradingEnv": "stocks",
    "StockTradingVecEnv": "stocks",
    "IsaacOneEnv": "isaac",
    "IsaacVecEnv": "isaac",
    "AgentBase": "agents",
    "Evaluator": "evaluator",
    "draw_learning_curve": "evaluator",
    "ReplayBuffer": "replay",
    "gym": "gym",
    **dict.fromkeys(TRAINING, "run"),
    **dict.fromkeys(AGENTS, "agents"),
    **dict.fromkeys(NETS, "nets"),
}
"""Documented name -> the module here that defines it; ``gym`` is a module itself."""

_LATER = ("AgentEmbedDQN", "AgentEnsembleDQN")

PROCESSES = ("Worker", "Learner", "EvaluatorProc", "PipeWorker", "PipeLearner", "PipeEvaluator")

LATER = {name: f"{name} is not available in this version of elegantrl" for name in _LATER} | {
    name: f"{name} is not available: train_and_evaluate_mp(args) starts the processes of a run by itself"
    for name in PROCESSES
}
"""Documented names that are not supported here, each with its error message."""
