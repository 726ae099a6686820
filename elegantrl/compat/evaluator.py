"""The documented evaluator: scores an actor, keeps the best one, and writes the files of a learning curve."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError
from ..roles.evaluator import Score
from ..store.runlog import RunLog
from ..store.tensors import save_actor_pth
from .envs import BuiltEnv, BuiltSingleEnv, build_env

EVAL_TIMES = 8
"""Episodes per evaluation if no settings are given."""


class Evaluator:
    """Writes ``actor.pth``, ``recorder.npy`` and ``plot_learning_curve.jpg`` into ``cwd``.

    ``actor`` is any callable from a state tensor [1, state_dim] to an action tensor [1, ...]; where actions are choices
    it may return the value of each choice.
    """

    def __init__(self, cwd: str | Path, env: Any, args: Any = None, if_tensorboard: bool = False) -> None:
        self.cwd = str(cwd)
        built = env if isinstance(env, BuiltEnv) else build_env(env)
        self.env = built if isinstance(built, BuiltSingleEnv) else BuiltSingleEnv(built.origin)
        self.eval_times = int(getattr(args, "eval_times", EVAL_TIMES))
        target = getattr(args, "target_return", None)
        self.target_return = built.target_return if target is None else target
        self.total_step, self.max_r = 0, -np.inf
        self._start = time.monotonic()
        self._log = RunLog(cwd, resume_step=0, loggers=("tensorboard",) if if_tensorboard else ())

    def evaluate_and_save(
        self, actor: Any, steps: int, exp_r: float = 0.0, logging_tuple: tuple[float, ...] = ()
    ) -> bool:
        """Score ``actor`` after ``steps`` further steps; returns whether the mean return reaches the target.

        ``logging_tuple`` begins with the critic's loss and the actor's, as ``update_net`` returns them.
        """
        self.total_step += int(steps)
        score = Score(tuple(self._episode(actor) for _ in range(self.eval_times)))
        critic_loss, actor_loss = (*map(float, logging_tuple[:2]), 0.0, 0.0)[:2]
        row: dict[str, float | int | str] = {
            "kind": "eval",
            "eval/mean": score.mean,
            "eval/std": score.std,
            "eval/ci95": score.ci95,
            "train/return": float(exp_r),
            "wall_seconds": time.monotonic() - self._start,
        }
        self._log.log(row, self.total_step)
        self._log.record_evaluation(self.total_step, score.mean, score.std, float(exp_r), actor_loss, critic_loss)
        if score.mean > self.max_r:
            self.max_r = score.mean
            if isinstance(actor, torch.nn.Module):
                save_actor_pth(Path(self.cwd) / "actor.pth", actor.state_dict())
        self.save_training_curve_jpg()
        return self.target_return is not None and score.mean >= self.target_return

    evaluate_save = evaluate_and_save

    @torch.no_grad()
    def _episode(self, actor: Any) -> float:
        state, done, total = self.env.reset(), False, 0.0
        while not done:
            action = actor(torch.as_tensor(state).unsqueeze(0))[0]
            if self.env.if_discrete and action.is_floating_point():
                action = action.argmax()
            state, reward, done, _ = self.env.step(action.cpu().numpy())
            total += reward
        return total

    def save_training_curve_jpg(self) -> None:
        """Draw the learning curve."""
        from ..report.plot import plot_run  # matplotlib is slow to import and only needed here

        plot_run(self.cwd)

    def save_or_load_recoder(self, if_save: bool) -> None:
        """Load the counters of an earlier script; every evaluation saves them without this call."""
        path = Path(self.cwd) / "recorder.npy"
        if if_save or not path.exists():
            return
        rows = np.load(path, allow_pickle=False)
        self.total_step, self.max_r = int(rows[-1, 0]), float(rows[:, 1].max())
        self._log.close()
        self._log = RunLog(self.cwd, resume_step=self.total_step, loggers=())

    def close(self) -> None:
        self._log.close()
        self.env.close()


def draw_learning_curve(
    recorder: Any = None, fig_title: str = "learning_curve", save_path: str = "learning_curve.jpg"
) -> None:
    """Draw the rows of a ``recorder.npy``: steps and the mean return with its standard deviation."""
    if recorder is None or np.ndim(recorder) != 2 or np.shape(recorder)[1] < 3:
        raise ConfigError("draw_learning_curve needs the rows of a recorder.npy: steps, mean and std of returns")
    from matplotlib.figure import Figure

    steps, mean, std = np.asarray(recorder, dtype=np.float64)[:, :3].T
    axes = (figure := Figure()).add_subplot()
    axes.plot(steps, mean)
    axes.fill_between(steps, mean - std, mean + std, alpha=0.3)
    axes.set(title=fig_title, xlabel="environment steps", ylabel="return")
    figure.savefig(save_path)
