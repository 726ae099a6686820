"""Does the H-term make PPO steadier? On and off with equal seeds and settings, and Stable-Baselines3 beside them.

    python benchmarks/h_term.py                       # whatever is not in the results yet
    python benchmarks/h_term.py --only Hopper-v5      # one task
    python benchmarks/h_term.py --table               # no runs, only table and picture

Every run trains for the same number of environment steps without an early stop, and its last policy is scored, not its
best one. Settings are our tuned ones for the task; Stable-Baselines3 gets the same numbers, and normalises rewards
where we scale values. Results accumulate in results/h_term.json after every run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, environment, write_json
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

BUDGETS = {"Hopper-v5": 102_400, "InvertedDoublePendulum-v5": 51_200}
"""Environment steps: whole iterations of 2,048, and long enough for the gap between lucky and unlucky runs to show."""
SYSTEMS = {"ppo": "PPO", "ppo_h": "PPO + H-term", "sb3": "Stable-Baselines3 PPO"}
COLOURS = {"ppo": "#0072b2", "ppo_h": "#d55e00", "sb3": "#777777"}
SEEDS = 8
EVALUATIONS = 10
EPISODES = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(BUDGETS), default=list(BUDGETS), help="tasks to run")
    parser.add_argument("--table", action="store_true", help="show what there is")
    parser.add_argument("--sb3", nargs=3, metavar=("ENV", "SEED", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sb3:
        env, seed, out = args.sb3
        Path(out).write_text(json.dumps(train_sb3(env, int(seed))))
        return 0
    path = RESULTS / "h_term.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    for env in [] if args.table else args.only:
        # Seed by seed, so that an interrupted benchmark has equal numbers of each and a busy hour hits all alike.
        for seed in range(SEEDS):
            for system in SYSTEMS:
                done = results["runs"].setdefault(env, {}).setdefault(system, {})
                if str(seed) not in done:
                    done[str(seed)] = run(system, env, seed)
                    results["environment"] = environment()
                    results["summary"] = {name: summarize(runs) for name, runs in results["runs"].items()}
                    write_json("h_term.json", results)
    show(results)
    for env, runs in results["runs"].items():
        draw(env, runs)
    return 0


def run(system: str, env: str, seed: int) -> dict[str, Any]:
    """Train one seed in a process of its own: steps and returns of its evaluations, and the seconds of training."""
    with tempfile.TemporaryDirectory() as folder:
        if system == "sb3":
            out = Path(folder) / "sb3.json"
            call([sys.executable, __file__, "--sb3", env, str(seed), str(out)])
            result: dict[str, Any] = json.loads(out.read_text())
        else:
            result = train_ours(env, seed, Path(folder) / "run", h_term=system == "ppo_h")
    print(f"{env} {system} seed {seed}: {result['returns'][-1]:.0f} in {result['seconds']:.0f} s", flush=True)
    return result


def train_ours(env: str, seed: int, run_dir: Path, *, h_term: bool) -> dict[str, Any]:
    budget = BUDGETS[env]
    command = [sys.executable, "-m", "elegantrl.cli.main", "train", "ppo", env, "--seed", seed, "--run-dir", run_dir]
    command += ["--max-steps", budget, "--target-return", "inf", "--eval.interval", budget // EVALUATIONS]
    # The form of the documents, whatever the default is.
    documented = ["--agent.h-term", "--agent.h-select", "reward", "--agent.h-ratio", "0"]
    command += ["--eval.episodes", EPISODES, *(documented if h_term else [])]
    call([str(word) for word in command])
    rows = [json.loads(row) for row in (run_dir / "metrics.jsonl").read_text().splitlines()]
    scores = [row for row in rows if row["kind"] == "eval"]
    summary = json.loads((run_dir / "summary.json").read_text())
    return {
        "steps": [row["env_steps"] for row in scores],
        "returns": [row["eval/mean"] for row in scores],
        "seconds": budget / summary["steps_per_second"],  # training proper, without evaluations
    }


def train_sb3(env: str, seed: int) -> dict[str, Any]:
    """The same work by Stable-Baselines3."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    from elegantrl.agents.ppo import PPOConfig
    from elegantrl.config.recipes import find_recipe

    torch.set_num_threads(1)
    sections = find_recipe("ppo", env).sections
    config, num_envs = PPOConfig(**sections["agent"]), sections["env"]["num_envs"]
    makers = [lambda: gymnasium.make(env)] * num_envs
    norm_obs, norm_reward = config.normalize_obs, config.normalize_value
    envs = VecNormalize(DummyVecEnv(makers), norm_obs=norm_obs, norm_reward=norm_reward, gamma=config.gamma)
    scorer = VecNormalize(DummyVecEnv(makers[:1]), training=False, norm_obs=norm_obs, norm_reward=False)
    activation = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[config.activation]
    total = config.schedule_steps
    model = PPO(
        "MlpPolicy", envs, n_steps=config.horizon, batch_size=config.batch_size, n_epochs=config.num_epochs,
        learning_rate=config.lr, gamma=config.gamma, gae_lambda=config.gae_lambda, clip_range=config.clip,
        ent_coef=config.entropy_coef, vf_coef=config.value_coef, max_grad_norm=config.max_grad_norm, seed=seed,
        policy_kwargs={"net_arch": list(config.hidden), "activation_fn": activation},
    )  # fmt: skip
    if config.lr_schedule == "linear":
        model.lr_schedule = lambda _: config.lr * max(0.0, 1 - model.num_timesteps / total)
    part, steps, returns, seconds = BUDGETS[env] // EVALUATIONS, [], [], 0.0
    for index in range(EVALUATIONS):
        start = time.perf_counter()
        model.learn(part * (index + 1) - model.num_timesteps, reset_num_timesteps=index == 0)
        seconds += time.perf_counter() - start
        if norm_obs:
            scorer.obs_rms = envs.obs_rms
        scorer.seed(10_000 + seed)
        mean, _ = evaluate_policy(model, scorer, EPISODES)
        steps.append(model.num_timesteps)
        returns.append(float(np.mean(mean)))
    return {"steps": steps, "returns": returns, "seconds": seconds}


def call(command: list[str]) -> None:
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


# ---- What comes out


def final(runs: dict[str, Any]) -> np.ndarray:
    return np.array([result["returns"][-1] for result in runs.values()])


def summarize(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Mean and deviation over runs, and the ratio of variances to plain PPO with a 95 % bootstrap interval."""
    rows: dict[str, Any] = {}
    for system, results in runs.items():
        scores = final(results)
        rows[system] = {
            "runs": len(scores),
            "mean": float(scores.mean()),
            "std": float(scores.std(ddof=1)) if len(scores) > 1 else None,
            "seconds": float(np.mean([result["seconds"] for result in results.values()])),
        }
        if system != "ppo" and len(scores) > 1 and len(runs["ppo"]) > 1:
            rows[system] |= compare(scores, final(runs["ppo"]))
    return rows


def compare(scores: np.ndarray, plain: np.ndarray, resamples: int = 10_000) -> dict[str, Any]:
    """Variance ratio and difference of means against plain PPO; runs are drawn with replacement on both sides."""
    generator = np.random.default_rng(0)
    a = generator.choice(scores, (resamples, len(scores)))
    b = generator.choice(plain, (resamples, len(plain)))
    spread = b.var(1, ddof=1) > 0  # a sample of one run drawn eight times has no variance
    ratio = a[spread].var(1, ddof=1) / b[spread].var(1, ddof=1)
    difference = a.mean(1) - b.mean(1)
    no_spread = not spread.any()  # all runs of plain PPO have the same score
    return {
        "variance_ratio": math.nan if no_spread else float(scores.var(ddof=1) / plain.var(ddof=1)),
        "variance_ratio_interval": [math.nan] * 2 if no_spread else np.quantile(ratio, [0.025, 0.975]).tolist(),
        "mean_difference": float(scores.mean() - plain.mean()),
        "mean_difference_interval": np.quantile(difference, [0.025, 0.975]).tolist(),
    }


def show(results: dict[str, Any]) -> None:
    table = Table(title="H-term: last policy, mean of 20 episodes per run", title_justify="left")
    names = ("task", "system", "runs", "mean", "std over runs", "variance / PPO's", "mean - PPO's", "seconds")
    for name in names:
        table.add_column(name, justify="left" if name in ("task", "system") else "right")
    for env, rows in ((env, summarize(runs)) for env, runs in results["runs"].items()):
        for system, row in rows.items():
            cells = [env, SYSTEMS[system], str(row["runs"]), f"{row['mean']:,.0f}", f"{row['std'] or 0:,.0f}", "", ""]
            if "variance_ratio" in row:
                low, high = row["variance_ratio_interval"]
                cells[5] = f"{row['variance_ratio']:.2f} ({low:.2f} - {high:.2f})"
                low, high = row["mean_difference_interval"]
                cells[6] = f"{row['mean_difference']:,.0f} ({low:,.0f} - {high:,.0f})"
            table.add_row(*cells, f"{row['seconds']:.0f}")
    Console(width=140).print(table)


def draw(env: str, runs: dict[str, dict[str, Any]]) -> None:
    """Mean over runs with one standard deviation, and every run as a thin line."""
    figure = Figure(figsize=(8, 4.5), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for system, results in runs.items():
        shortest = min(len(result["returns"]) for result in results.values())
        returns = np.array([result["returns"][:shortest] for result in results.values()])
        steps = np.array(next(iter(results.values()))["steps"][:shortest])
        mean, std, colour = returns.mean(0), returns.std(0), COLOURS[system]
        axes.plot(steps, returns.T, color=colour, alpha=0.25, linewidth=0.7)
        axes.plot(steps, mean, color=colour, linewidth=2.2, label=f"{SYSTEMS[system]} ({len(returns)} runs)")
        axes.fill_between(steps, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    axes.set(title=f"{env}: mean and standard deviation over runs", xlabel="environment steps", ylabel="return")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.tight_layout()
    (RESULTS / "h_term").mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / "h_term" / f"{env}.png")


if __name__ == "__main__":
    sys.exit(main())
