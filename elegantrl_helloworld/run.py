"""Training: the settings, the loop of exploring and learning, and the evaluation."""

import difflib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from .agent import AgentBase, ReplayBuffer, look_ahead
from .env import GymEnv, VecEnv, build_env

# Names in older documents -> names here.
ALIASES = {"target_step": "horizon_len", "net_dim": "net_dims", "env_num": "num_envs", "max_memo": "buffer_size"}


class Config:
    """All settings of a run. `env` is an id such as "CartPole-v1", an environment, or a class with `env_args`."""

    def __init__(self, agent_class: type[AgentBase], env_class: Any = None, env_args: dict | None = None, **more: Any):
        given = (env_class, more.pop("env_func", None), more.pop("env", None))
        env = next((x for x in given if x is not None), None)
        self.agent_class = agent_class
        self.make_env: Callable[[], GymEnv] = lambda: build_env(env, env_args)
        facts = self.make_env()
        self.env_name, self.max_step = facts.env_name, facts.max_step
        self.state_dim, self.action_dim, self.if_discrete = facts.state_dim, facts.action_dim, facts.if_discrete
        if agent_class.if_discrete not in (None, self.if_discrete):
            kind, other = ("discrete", "AgentDQN") if self.if_discrete else ("continuous", "AgentSAC")
            raise ValueError(f"{agent_class.__name__} cannot choose the {kind} actions of {self.env_name}; use {other}")
        off_policy = agent_class.if_off_policy

        # the problem
        self.gamma = 0.99  # a reward counts gamma times as much when it comes one step later
        self.reward_scale = 1.0  # rewards are multiplied by it, so that values are numbers of the size of 1 to 100
        # the networks and their updates
        self.net_dims = [128, 128] if off_policy else [64, 64]  # sizes of the hidden layers
        self.learning_rate = 5e-4 if off_policy else 1e-3
        self.batch_size = 128 if off_policy else 256
        self.clip_grad_norm = 10.0 if off_policy else 0.5
        # exploring and learning take turns: horizon_len steps in each of num_envs environments, then some updates
        self.num_envs = 4 if off_policy else 16
        self.horizon_len = 16 if off_policy else 128
        self.repeat_times = 0.5 if off_policy else 8  # off-policy: updates per new transition; PPO: passes over them
        # only off-policy
        self.buffer_size = 300_000  # transitions
        self.buffer_init_size = 1_000  # transitions before the first update
        self.n_step = 1  # steps whose rewards are added up before a target counts on the value of a state
        self.soft_update_tau = 0.005  # how far a target network moves in one update
        self.explore_rate = 0.05  # DQN: chance of a random action, reached after explore_steps steps
        self.explore_steps = 10_000
        self.explore_noise_std = 0.1  # TD3: noise of actions
        # only PPO
        self.ratio_clip = 0.2
        self.lambda_gae_adv = 0.95
        self.lambda_entropy = 0.01
        # when to evaluate, when to stop
        self.break_step = 1_000_000  # steps in all environments together
        self.target_return: float = facts.target_return  # stop when two evaluations in a row reach it
        self.eval_times = 8  # episodes per evaluation
        self.eval_per_step = 10_000  # steps between evaluations
        self.test_times = 100  # episodes of the best policy at the end
        # the rest
        self.random_seed = 0
        self.gpu_id = -1  # -1: the CPU
        self.cwd: str | None = None  # the folder of results; None: runs/ENVIRONMENT_AGENT_SEED
        for name, value in more.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "net_dim" and isinstance(value, int):
            value = [value, value]
        name = ALIASES.get(name, name)
        if "cwd" in self.__dict__ and name not in self.__dict__:  # cwd is the last: all settings exist
            near = difflib.get_close_matches(name, self.__dict__, n=1)
            raise AttributeError(f"there is no setting {name!r}; did you mean {near or sorted(self.__dict__)}?")
        super().__setattr__(name, value)


Arguments = Config


class Result(NamedTuple):
    """The outcome of a run: the best policy, played for `test_times` episodes with seeds that training never used."""

    mean_return: float
    std_return: float
    steps: int
    seconds: float
    cwd: str


def train_and_evaluate(args: Config) -> Result:
    """Train an agent until two evaluations in a row reach `target_return`, or for `break_step` steps."""
    torch.set_num_threads(1)  # networks this small are slower with several threads
    torch.manual_seed(args.random_seed)
    env = VecEnv(args.make_env, args.num_envs, args.random_seed)
    agent = args.agent_class(args.net_dims, args.state_dim, args.action_dim, args.gpu_id, args)
    buffer = ReplayBuffer(args.buffer_size)
    evaluator = Evaluator(args)
    while agent.steps < args.break_step and not evaluator.solved:
        rollout = agent.explore_env(env, args.horizon_len)
        losses = (float("nan"), float("nan"))
        if not agent.if_off_policy:
            losses = agent.update_net(rollout)
        else:
            buffer.update(look_ahead(rollout, args.n_step))
            if buffer.size >= args.buffer_init_size:
                losses = agent.update_net(buffer)
        evaluator.evaluate_and_save(agent, env, losses)
    return evaluator.finish(agent)


def get_returns(agent: AgentBase, env: GymEnv, seeds: range) -> np.ndarray:
    """The undiscounted return of one episode per seed, with the best known action in every state."""
    returns = []
    for seed in seeds:
        state, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            state, reward, terminated, truncated, _ = env.step(agent.select_action(state))
            total += float(reward)
            ended = terminated or truncated
        returns.append(total)
    return np.array(returns)


class Evaluator:
    """Measures an agent from time to time, keeps its best policy and draws the learning curve.

    It writes into `cwd`: actor.pth (weights of the policy with the best evaluation), recorder.npy (steps, seconds,
    mean and standard deviation of returns, one row per evaluation) and LearningCurve.jpg.
    """

    def __init__(self, args: Config):
        self.args, self.env = args, args.make_env()
        self.cwd = Path(args.cwd or f"runs/{args.env_name}_{args.agent_class.__name__}_{args.random_seed}")
        self.cwd.mkdir(parents=True, exist_ok=True)
        self.start, self.next_step = time.monotonic(), args.eval_per_step
        self.next_seed = 1_000_000 * (args.random_seed + 1)  # far from the seeds of the training environments
        self.rows: list[tuple[float, ...]] = []
        self.best, self.solved = -float("inf"), False
        print(f"{args.agent_class.__name__} learns {args.env_name}: at most {args.break_step:,} steps")
        print("     steps  seconds    return      +-  exploring  critic loss  actor loss")

    def evaluate_and_save(self, agent: AgentBase, env: VecEnv, losses: tuple[float, float]) -> None:
        if agent.steps < min(self.next_step, self.args.break_step):
            return
        self.next_step = agent.steps + self.args.eval_per_step
        returns = get_returns(agent, self.env, range(self.next_seed, self.next_seed + self.args.eval_times))
        self.next_seed += self.args.eval_times
        mean, std, seconds = float(returns.mean()), float(returns.std()), time.monotonic() - self.start
        self.rows.append((agent.steps, seconds, mean, std))
        exploring = np.mean(env.returns[-20:]) if env.returns else float("nan")
        print(f"{agent.steps:>10,} {seconds:>8.0f} {mean:>9.1f} {std:>7.1f} {exploring:>10.1f}"
              f" {losses[0]:>12.3f} {losses[1]:>11.3f}", flush=True)  # fmt: skip
        self.solved = len(self.rows) > 1 and min(row[2] for row in self.rows[-2:]) >= self.args.target_return
        if mean >= self.best:  # of equally good policies the latest
            self.best = mean
            torch.save(agent.act.state_dict(), self.cwd / "actor.pth")

    def finish(self, agent: AgentBase) -> Result:
        """Load the best policy, test it on fresh episodes and save the record."""
        agent.act.load_state_dict(torch.load(self.cwd / "actor.pth", weights_only=True))
        returns = get_returns(agent, self.env, range(500_000, 500_000 + self.args.test_times))
        seconds = time.monotonic() - self.start
        np.save(self.cwd / "recorder.npy", np.array(self.rows))
        steps, _, mean, std = np.array(self.rows).T
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(steps, mean, marker=".")
        axes.fill_between(steps, mean - std, mean + std, alpha=0.2)
        title = f"{self.args.env_name}, {self.args.agent_class.__name__}"
        axes.set(title=title, xlabel="steps in the environment", ylabel="return of an episode")
        axes.grid(alpha=0.3)
        figure.savefig(self.cwd / "LearningCurve.jpg")
        why = "reached its target" if self.solved else "used all of its steps"
        score = f"{returns.mean():.1f} +- {returns.std():.1f} in {len(returns)} new episodes"
        print(f"It {why}. Its best policy returns {score}.")
        print(f"Its weights and the picture of its learning curve are in {self.cwd}")
        return Result(float(returns.mean()), float(returns.std()), agent.steps, seconds, str(self.cwd))
