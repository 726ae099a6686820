"""The trained policy of a run, ready to act and to be evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..agents.fusion import normalize_weights
from ..config.run import RunConfig
from ..envs import env_settings, make_env
from ..envs.frame_stack import stack_frames
from ..errors import CheckpointError, ConfigError
from ..nets.policies import EnsemblePolicy, Policy, PolicySpec
from ..roles.evaluator import Evaluator, Score
from ..tree import Tree
from ..types import Weights
from .best import BEST_FILE, load_best
from .team_units import AnyUnits
from .untrusted import check_env_id, check_env_kwargs, check_named, load_config


class TrainedPolicy:
    """The best policy of a run."""

    def __init__(
        self,
        policy: Policy,
        spec: PolicySpec,
        units: AnyUnits,
        config: RunConfig,
        folder: Path,
        allow_import: bool = False,
    ):
        self.policy, self.spec, self.units, self.config = policy, spec, units, config
        self.folder, self.allow_import = folder, allow_import
        self._generator = torch.Generator().manual_seed(0)

    @classmethod
    def load(cls, run_dir: str | Path, allow_import: bool = False) -> TrainedPolicy:
        """Load from a run folder; nothing is unpickled, and code that the folder names by import path runs only with
        ``allow_import``, for a trusted folder."""
        folder = Path(run_dir)
        if not folder.is_dir():
            raise CheckpointError(f"there is no run folder {folder}; check the path")
        config = load_config(folder, agent_needed=False)
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
        first = members[0]
        for run_dir, member in zip(run_dirs, members, strict=True):
            same_sizes = (member.spec.obs, member.spec.action) == (first.spec.obs, first.spec.action)
            if not same_sizes or member.units.action_space != first.units.action_space:
                raise ConfigError(
                    f"{run_dir} was trained on {member.config.env.id}, whose observations or actions are not those of"
                    f" {first.config.env.id}; an ensemble needs one kind of task"
                )
            if member.policy.core is not None:
                raise ConfigError(
                    f"{run_dir} has a memory, whose state an ensemble does not keep: it can be no member of an"
                    f" ensemble; leave it out"
                )
        votes = {"members": [m.spec.to_json() for m in members], "weights": shares}
        spec = PolicySpec("ensemble", first.spec.obs, first.spec.action, kwargs=votes)
        policy = spec.build(allow_import=True)  # the members have been built before
        assert isinstance(policy, EnsemblePolicy)
        for own, member in zip(policy.members, members, strict=True):
            own.load_state_dict(member.policy.state_dict())
        return cls(policy.requires_grad_(False), spec, first.units, first.config, first.folder, allow_import)

    @property
    def acts_by_choice(self) -> bool:
        """Whether an action is one of several choices rather than numbers."""
        return self.spec.action.kind != "continuous"

    @torch.no_grad()
    def act(
        self,
        obs: Any,
        carry: dict[str, Any] | None = None,
        *,
        mask: Any = None,
        stochastic: bool = False,
        seed: int | torch.Generator | None = None,
    ) -> Any:
        """The action for ``env.step``, for one observation of the environment or a batch of them.

        A team gets a dict with an observation for each agent, and the result is a dict with an action for each of them.
        Agents may be left out: nothing but its own observation reaches an agent, and so each can have a process of its
        own. ``mask`` is then a dict, too, and in ``carry`` the state of agents that are left out stays as it is.

        It is the best known action; with ``stochastic`` a sample of the policy as it explored when it was saved, drawn
        from ``seed``, which is a number, a generator, or None for one stream of this object. ``carry`` is for policies
        with state and policies that see several frames at once: a dict, empty at the beginning of an episode, which
        keeps the state and the frames for the next step. Without it each call is like the first of an episode.
        ``mask`` is for policies that were trained with action masks: a flag for every action, true if it may be taken;
        an observation that holds its mask needs none.
        """
        given = self.units.encode(obs, mask)
        memory = {} if carry is None else carry
        batch = stack_frames(given.batch, self.spec.obs, memory)
        before = memory.get("carry", self.policy.initial_carry(given.num))
        if stochastic:
            generator = seed if isinstance(seed, torch.Generator) else self._generator
            if isinstance(seed, int):
                generator = torch.Generator().manual_seed(seed)
            action, after = self._sample(batch, given.num, before, generator)
        else:
            action, after = self.policy.act(batch, before)
        memory["carry"] = self.units.next_carry(before, after, given)
        return self.units.decode(action, given)

    def _sample(self, batch: Tree, num: int, carry: Tree, generator: torch.Generator) -> tuple[Tensor, Tree]:
        if isinstance(self.policy, EnsemblePolicy):
            raise ConfigError("an ensemble averages decisions and has none to sample; leave stochastic out")
        (draw,) = self.policy.draw(1, num, generator)
        acted = self.policy.explore(batch, carry, draw)
        return acted.action, acted.carry

    def evaluate(self, episodes: int = 20, seed: int = 0, env: Any = None) -> Score:
        """Returns of ``episodes`` episodes without exploration.

        ``env`` replaces the environment that the run folder names, which must be a registered one unless the policy was
        loaded with ``allow_import``.
        """
        source, kwargs = self.choose_env(env)
        vec_env = make_env(source, episodes, device="cpu", **kwargs)
        evaluator = Evaluator(vec_env, self.spec, self.config.eval.max_episode_steps)
        try:
            return evaluator.score(Weights(0, self.policy.to_flat()), seed)
        finally:
            evaluator.close()

    @property
    def env_id(self) -> str:
        """The environment that the run was evaluated in."""
        return self.config.eval.env_id or self.config.env.id

    def choose_env(self, env: Any = None) -> tuple[Any, dict[str, Any]]:
        """The source of an environment and its arguments: those of the run if it is the run's environment."""
        if env is not None and env != self.env_id:
            return env, env_settings(self.spec.obs)
        kwargs = self.config.eval.env_kwargs
        if self.config.eval.env_id is None:
            kwargs = self.config.env.kwargs | kwargs
        if env is None:
            check_named(self.env_id, str(self.folder))
        if not self.allow_import:
            if env is None:
                check_env_id(self.env_id, str(self.folder))
            check_env_kwargs(kwargs, str(self.folder))
        return self.env_id, kwargs | env_settings(self.spec.obs)
