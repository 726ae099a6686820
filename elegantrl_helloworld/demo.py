"""Four demonstrations: discrete and continuous actions, off-policy and on-policy.

    python -m elegantrl_helloworld.demo                         # PPO learns CartPole in seconds
    python -m elegantrl_helloworld.demo continuous_off --env 2  # SAC lands a spacecraft
    python -m elegantrl_helloworld.demo --help

docs/helloworld.md says what each of them reaches, in how many steps and how much time.
"""

import argparse
import sys
from functools import partial
from typing import Any

import gymnasium as gym

from .agent import AgentDQN, AgentPPO, AgentSAC, AgentTD3, ReplayBuffer
from .env import GymEnv, PendulumEnv, VecEnv, build_env, get_gym_env_args
from .run import Arguments, Config, Evaluator, Result, train_and_evaluate

__all__ = [
    "AgentDQN", "AgentDiscretePPO", "AgentDoubleDQN", "AgentPPO", "AgentSAC", "AgentTD3", "Arguments", "Config",
    "Evaluator", "GymEnv", "PendulumEnv", "ReplayBuffer", "Result", "VecEnv", "build_env", "get_gym_env_args", "gym",
    "demo_continuous_action_off_policy", "demo_continuous_action_on_policy", "demo_discrete_action_off_policy",
    "demo_discrete_action_on_policy", "train_agent", "train_and_evaluate",
]  # fmt: skip

# Names of the documents; Gymnasium has a variable in the place of the first.
gym.logger.set_level = lambda level: setattr(gym.logger, "min_level", level)
AgentDoubleDQN, AgentDiscretePPO, train_agent = AgentDQN, AgentPPO, train_and_evaluate

LANDER_PPO = {
    "gamma": 0.999, "lambda_gae_adv": 0.98, "reward_scale": 0.1, "horizon_len": 256, "batch_size": 512,
    "repeat_times": 6, "break_step": 1_000_000, "eval_per_step": 40_000, "eval_times": 20, "target_return": 240,
}  # fmt: skip
DEMOS: dict[str, tuple[Any, dict[int, tuple[str, dict]]]] = {
    "discrete_off": (AgentDQN, {
        1: ("CartPole-v1", {
            "gamma": 0.98, "break_step": 150_000, "eval_per_step": 5_000, "eval_times": 20, "target_return": 490}),
        2: ("LunarLander-v3", {
            "horizon_len": 8, "n_step": 4, "reward_scale": 0.1, "explore_rate": 0.02, "explore_steps": 40_000,
            "num_envs": 8, "break_step": 500_000, "eval_per_step": 20_000, "eval_times": 20, "target_return": 240}),
    }),
    "discrete_on": (AgentDiscretePPO, {
        1: ("CartPole-v1", {
            "gamma": 0.98, "lambda_gae_adv": 0.8, "learning_rate": 2e-3, "horizon_len": 32, "break_step": 100_000,
            "eval_per_step": 5_000, "eval_times": 20, "target_return": 490}),
        2: ("LunarLander-v3", LANDER_PPO),
    }),
    "continuous_off": (AgentSAC, {
        1: ("Pendulum-v1", {
            "num_envs": 1, "repeat_times": 1, "gamma": 0.98, "learning_rate": 1e-3, "net_dims": [64, 64],
            "soft_update_tau": 0.01, "reward_scale": 0.1, "break_step": 20_000, "eval_per_step": 2_000,
            "eval_times": 20, "target_return": -155}),
        2: ("LunarLanderContinuous-v3", {
            "gamma": 0.998, "horizon_len": 12, "n_step": 12, "learning_rate": 7e-4, "soft_update_tau": 0.01,
            "reward_scale": 0.1, "buffer_init_size": 5_000, "break_step": 200_000, "target_return": 230}),
    }),
    "continuous_on": (AgentPPO, {
        1: ("Pendulum-v1", {
            "gamma": 0.97, "reward_scale": 0.1, "num_envs": 8, "horizon_len": 256, "batch_size": 128,
            "repeat_times": 10, "lambda_entropy": 0.0, "break_step": 200_000, "eval_times": 20, "target_return": -155}),
        2: ("LunarLanderContinuous-v3", LANDER_PPO),
        3: ("BipedalWalker-v3", {
            "reward_scale": 0.1, "horizon_len": 512, "batch_size": 512, "learning_rate": 5e-4, "lambda_entropy": 0.0,
            "break_step": 2_000_000, "eval_per_step": 100_000, "target_return": 280}),
    }),
}  # fmt: skip
"""Demonstration -> its agent, and the environments by number, each with the settings that differ from `Config`."""


def run_demo(name: str, env_id: int | None = None, **settings: Any) -> Result:
    """Train the agent of a demonstration; `settings` are further settings of `Config`."""
    agent_class, envs = DEMOS[name]
    if env_id is None:  # the documents select an environment by a global ENV_ID of the script
        env_id = getattr(sys.modules["__main__"], "ENV_ID", 1)
    if env_id not in envs:
        names = ", ".join(f"{number} ({env})" for number, (env, _) in envs.items())
        raise ValueError(f"{name} has no environment {env_id!r}; choose one of {names}")
    env, tuned = envs[env_id]
    return train_and_evaluate(Config(agent_class, env, **tuned | settings))


demo_discrete_action_off_policy = partial(run_demo, "discrete_off")
demo_discrete_action_on_policy = partial(run_demo, "discrete_on")
demo_continuous_action_off_policy = partial(run_demo, "continuous_off")
demo_continuous_action_on_policy = partial(run_demo, "continuous_on")


def main() -> None:
    rows = [
        f"  {name:<15} --env {i}   {agent.__name__[5:]:<4} {env:<25} at most {settings['break_step']:>9,} steps"
        for name, (agent, envs) in DEMOS.items()
        for i, (env, settings) in envs.items()
    ]
    parser = argparse.ArgumentParser(
        prog="python -m elegantrl_helloworld.demo",
        description="Train an agent, print its progress and draw its learning curve into a folder under runs/.",
        epilog="demonstrations:\n" + "\n".join(rows),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("demo", nargs="?", default="discrete_on", choices=DEMOS, help="see the list below (default: discrete_on)")
    add("--env", type=int, default=1, help="the number of an environment in the list below (default: 1)")
    add("--seed", type=int, default=0, help="the same seed gives the same result (default: 0)")
    add("--steps", type=int, help="at most so many steps (default: see the list below)")
    given = parser.parse_args()
    limit = {"break_step": given.steps} if given.steps else {}
    try:
        run_demo(given.demo, given.env, random_seed=given.seed, **limit)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
