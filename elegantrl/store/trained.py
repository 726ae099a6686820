"""The policy that a run leaves behind: how it is written, loaded, asked and judged. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..agents.fusion import normalize_weights
from ..config.run import RunConfig
from ..envs import make_env
from ..errors import CheckpointError, ConfigError
from ..nets.policies import EnsemblePolicy, FlatPolicy, Policy, PolicySpec
from ..roles.evaluator import Evaluator, Score
from ..types import Weights
from .files import load_weights, save_actor_pth, save_weights

BEST_FILE = "best.safetensors"


def load_config(folder: Path) -> RunConfig:
    """The config a run folder was made with."""
    try:
        return RunConfig.from_yaml((folder / "config.yaml").read_text())
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise CheckpointError(f"{folder}/config.yaml cannot be read ({text}); is {folder} a run folder?") from None


def save_best(folder: Path, spec: PolicySpec, flat: torch.Tensor, env_steps: int, mean: float) -> None:
    """The best policy so far under its two names; a run that dies later still leaves it."""
    about = {"env_steps": str(env_steps), "mean": str(mean)}
    policy = FlatPolicy(spec, torch.device("cpu")).load(flat.cpu())
    save_weights(folder / BEST_FILE, policy.state_dict(), {"policy": json.dumps(asdict(spec)), **about})
    save_actor_pth(folder / "actor.pth", policy.state_dict())


class TrainedPolicy:
    """The best policy of a run, ready to act and to be judged."""

    def __init__(self, policy: Policy, spec: PolicySpec, config: RunConfig):
        self.policy, self.spec, self.config = policy, spec, config

    @classmethod
    def load(cls, run_dir: str | Path) -> TrainedPolicy:
        """From a run folder; nothing is unpickled."""
        folder = Path(run_dir)
        if not folder.is_dir():
            raise CheckpointError(f"there is no run folder {folder}; check the path")
        config = load_config(folder)
        if not (folder / BEST_FILE).exists():
            raise CheckpointError(f"{folder} holds no trained policy yet; let the run finish or resume it")
        tensors, about = load_weights(folder / BEST_FILE)
        try:
            spec = PolicySpec(**json.loads(about["policy"]))
            policy = spec.build()
            policy.load_state_dict(tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            text = " ".join(str(error).split())
            raise CheckpointError(f"{folder / BEST_FILE} does not hold a policy of this version: {text}") from None
        return cls(policy.requires_grad_(False), spec, config)

    @classmethod
    def ensemble(cls, run_dirs: Sequence[str | Path], weights: Sequence[float] | None = None) -> TrainedPolicy:
        """Several runs as one policy: the weighted average of their best policies, equal weights by default."""
        members = [cls.load(run_dir) for run_dir in run_dirs]
        shares = normalize_weights(weights, len(members))
        sizes = {name: members[0].spec.kwargs[name] for name in ("obs_dim", "action_dim")}
        kind = members[0].acts_by_choice
        for run_dir, member in zip(run_dirs, members, strict=True):
            if any(member.spec.kwargs[name] != size for name, size in sizes.items()) or member.acts_by_choice != kind:
                raise ConfigError(
                    f"{run_dir} was trained on {member.config.env.id}, whose observations or actions are not those of"
                    f" {members[0].config.env.id}; an ensemble needs one kind of task"
                )
        spec = PolicySpec("ensemble", {**sizes, "members": [asdict(m.spec) for m in members], "weights": shares})
        policy = spec.build()
        assert isinstance(policy, EnsemblePolicy)
        for own, member in zip(policy.members, members, strict=True):
            own.load_state_dict(member.policy.state_dict())
        return cls(policy.requires_grad_(False), spec, members[0].config)

    @property
    def acts_by_choice(self) -> bool:
        """Whether an action is one of several choices rather than numbers."""
        return self.spec.kind in ("categorical", "q")

    @torch.no_grad()
    def act(self, obs: Any) -> np.ndarray:
        """The best known action for one observation or a batch of them; continuous ones in [-1, 1]."""
        x = torch.as_tensor(np.asarray(obs, dtype=np.float32))
        batch = x.reshape(-1, self.spec.kwargs["obs_dim"])
        action = self.policy.act(batch)
        return np.asarray(action.squeeze(0) if batch.shape[0] == 1 and x.dim() < 2 else action)

    def evaluate(self, episodes: int = 20, seed: int = 0, env: Any = None) -> Score:
        """Returns of ``episodes`` episodes without exploration."""
        source = self.config.env.id if env is None else env
        vec_env = make_env(source, episodes, device="cpu", **self.config.env.kwargs)
        evaluator = Evaluator(vec_env, self.spec, self.config.eval.max_episode_steps)
        try:
            return evaluator.score(Weights(0, self.policy.to_flat()), seed)
        finally:
            evaluator.close()
