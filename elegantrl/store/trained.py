"""The policy that a run leaves behind, ready to act and to be evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..agents.fusion import normalize_weights
from ..config.run import RunConfig
from ..envs import make_env
from ..errors import CheckpointError, ConfigError
from ..nets.policies import EnsemblePolicy, Policy, PolicySpec
from ..roles.evaluator import Evaluator, Score
from ..types import Weights, vector_dim
from .best import BEST_FILE, load_best
from .untrusted import check_env_id, check_env_kwargs, load_config


class TrainedPolicy:
    """The best policy of a run."""

    def __init__(self, policy: Policy, spec: PolicySpec, config: RunConfig, folder: Path, allow_import: bool = False):
        self.policy, self.spec, self.config = policy, spec, config
        self.folder, self.allow_import = folder, allow_import

    @classmethod
    def load(cls, run_dir: str | Path, allow_import: bool = False) -> TrainedPolicy:
        """From a run folder; nothing is unpickled, and code that the folder names by import path does not run unless
        ``allow_import`` says that the folder is trusted."""
        folder = Path(run_dir)
        if not folder.is_dir():
            raise CheckpointError(f"there is no run folder {folder}; check the path")
        config = load_config(folder, allow_import)
        if not (folder / BEST_FILE).exists():
            raise CheckpointError(f"{folder} holds no trained policy yet; let the run finish or resume it")
        return cls(*load_best(folder, allow_import), config, folder, allow_import)

    @classmethod
    def ensemble(
        cls, run_dirs: Sequence[str | Path], weights: Sequence[float] | None = None, allow_import: bool = False
    ) -> TrainedPolicy:
        """Several runs as one policy: the weighted average of their best policies, equal weights by default."""
        members = [cls.load(run_dir, allow_import) for run_dir in run_dirs]
        shares = normalize_weights(weights, len(members))
        first = members[0].spec
        for run_dir, member in zip(run_dirs, members, strict=True):
            if (member.spec.obs, member.spec.action) != (first.obs, first.action):
                raise ConfigError(
                    f"{run_dir} was trained on {member.config.env.id}, whose observations or actions are not those of"
                    f" {members[0].config.env.id}; an ensemble needs one kind of task"
                )
        votes = {"members": [m.spec.to_json() for m in members], "weights": shares}
        spec = PolicySpec("ensemble", first.obs, first.action, kwargs=votes)
        policy = spec.build(allow_import=True)  # the members have been built before
        assert isinstance(policy, EnsemblePolicy)
        for own, member in zip(policy.members, members, strict=True):
            own.load_state_dict(member.policy.state_dict())
        return cls(policy.requires_grad_(False), spec, members[0].config, members[0].folder, allow_import)

    @property
    def acts_by_choice(self) -> bool:
        """Whether an action is one of several choices rather than numbers."""
        return self.spec.action.kind != "continuous"

    @torch.no_grad()
    def act(self, obs: Any) -> np.ndarray:
        """The best known action for one observation or a batch of them; continuous ones in [-1, 1]."""
        x = torch.as_tensor(np.asarray(obs, dtype=np.float32))
        batch = x.reshape(-1, vector_dim(self.spec.obs))
        action, _ = self.policy.act(batch, self.policy.initial_carry(len(batch)))
        return np.asarray(action.squeeze(0) if batch.shape[0] == 1 and x.dim() < 2 else action)

    def evaluate(self, episodes: int = 20, seed: int = 0, env: Any = None) -> Score:
        """Returns of ``episodes`` episodes without exploration.

        ``env`` takes the place of the environment that the run folder names, which must be a registered one unless the
        policy was loaded with ``allow_import``.
        """
        source, kwargs = self.choose_env(env)
        vec_env = make_env(source, episodes, device="cpu", **kwargs)
        evaluator = Evaluator(vec_env, self.spec, self.config.eval.max_episode_steps)
        try:
            return evaluator.score(Weights(0, self.policy.to_flat()), seed)
        finally:
            evaluator.close()

    def choose_env(self, env: Any = None) -> tuple[Any, dict[str, Any]]:
        """What to make an environment of, and with which arguments: those of the run if it is the run's environment."""
        own, where = self.config.env, str(self.folder)
        if env is not None and env != own.id:
            return env, {}
        if not self.allow_import:
            if env is None:
                check_env_id(own.id, where)
            check_env_kwargs(own.kwargs, where)
        return own.id, own.kwargs
