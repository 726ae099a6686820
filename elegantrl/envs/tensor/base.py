"""The base of environments made of tensor operations: a subclass defines only the first states and the dynamics.

Axes: N environment lanes, S state, O observation, A action.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import CheckpointError, SpecError
from ...rng import derive_seed
from ...tree import Tree
from ...types import ActionSpec, EnvSpec, Leaf, Obs, State, Step
from ..masks import empty_lanes, empty_mask
from ..vec_env import VecEnv


class TensorEnv(VecEnv):
    """N environments in one state tensor [N, S]. This class implements time limits, resets, successors and saving.

    A subclass sets ``obs_dim`` or ``obs``, ``action`` and further attributes in its class body or before
    ``super().__init__``; it implements ``initial`` and ``dynamics``, and ``observe`` if an observation is not the
    state itself. These three methods return new tensors and do not change their arguments.
    """

    name: ClassVar[str] = ""
    obs_dim: int = 0
    """The length of an observation that is one vector of floats."""
    obs: Tree = None
    """The tree of ``Leaf`` of any other observation, such as ``Obs`` with a mask or a state."""
    action: ActionSpec
    num_agents: int | None = None
    agent_names: tuple[str, ...] = ()
    """The names of a team's agents, unless they are ``agent_0``, ``agent_1``, ..."""
    max_episode_steps: int | None = None
    target_return: float | None = None
    frames_per_second: float = 10.0
    """The speed of videos of a subclass with a method ``draw(lane) -> picture [H, W, 3]``."""

    def __init__(
        self, num_envs: int = 1, device: torch.device | str = "cpu", max_episode_steps: int | None = None
    ) -> None:
        self.device = torch.device(device)
        self.spec = EnvSpec(
            name=self.name or type(self).__name__,
            obs=Leaf((self.obs_dim,)) if self.obs is None else self.obs,
            action=self.action,
            num_envs=num_envs,
            num_agents=self.num_agents,
            agent_names=self.agent_names,
            max_episode_steps=max_episode_steps or self.max_episode_steps,
            target_return=self.target_return,
        )
        self.generator = torch.Generator(device=self.device)
        self._has_mask = isinstance(self.spec.obs, Obs) and self.spec.obs.mask is not None
        self._clip = self.action.kind == "continuous"
        self._action_shape = (num_envs, *self.spec.action_leaf.shape)
        self._limit = self.spec.max_episode_steps or torch.iinfo(torch.int32).max
        self._state: Tensor | None = None

    @abstractmethod
    def initial(self, num_rows: int) -> Tensor:
        """First states [num_rows, S], drawn from ``self.generator``."""

    @abstractmethod
    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next states [N, S], rewards [N] and whether the MDP ended [N]; time limits are applied by ``step``.

        ``action`` is int64 [N], int64 [N, C] with several choices, or float32 [N, A] within [-1, 1]. A team has the
        axis G after N in actions and rewards.
        """

    def observe(self, state: Tensor) -> Tree:
        """The observation of ``state``: a tensor [N, O], or a tree like ``obs``."""
        return state

    def won(self, state: Tensor) -> Tensor | None:
        """Whether an episode that has reached ``state`` is won [N]; None for tasks that cannot be won."""
        return None

    def reset(self, seed: int) -> Tree:
        self.generator.manual_seed(derive_seed(seed, "tensor"))
        self._state = self.initial(self.spec.num_envs)
        self._elapsed = torch.zeros(self.spec.num_envs, dtype=torch.int32, device=self.device)
        return self.observe(self._state)

    def step(self, action: Tensor) -> Step:
        if action.shape != self._action_shape:
            raise SpecError(
                f"environment {self.spec.name!r}: action has shape {tuple(action.shape)}, expected {self._action_shape}"
            )
        assert self._state is not None, "reset comes before step"
        if self._clip:
            action = action.clamp(-1, 1)
        state, reward, terminated = self.dynamics(self._state, action)
        elapsed = self._elapsed + 1
        truncated = (elapsed >= self._limit) & ~terminated
        next_obs = self.observe(state)
        obs = self._restart(state, elapsed, terminated | truncated, next_obs)
        if self._has_mask and self.device.type == "cpu":  # elsewhere reading a mask would wait for the device
            self._refuse_empty_masks(obs)
        return Step(obs, reward, terminated, truncated, next_obs, won=self.won(state))

    def _refuse_empty_masks(self, obs: Obs) -> None:
        """A mask must leave an option of each choice to every agent that is active."""
        assert obs.mask is not None
        mask = obs.mask if obs.active is None else obs.mask | ~obs.active.unsqueeze(-1)
        for lane in empty_lanes(mask.numpy(), self.action):
            raise empty_mask(self.spec.name, lane, int(self._elapsed[lane]))

    def _restart(self, state: Tensor, elapsed: Tensor, done: Tensor, next_obs: Tree) -> Tree:
        """Store ``state`` with first states where an episode is ``done``; return the observations."""
        if self.device.type == "cpu":
            # Reading `done` costs nothing here, and drawing few rows is cheaper than drawing all.
            rows = done.nonzero().squeeze(1)
            if len(rows) == 0:
                self._state, self._elapsed = state, elapsed
                return next_obs
            self._state = state.index_copy(0, rows, self.initial(len(rows)))
            self._elapsed = elapsed.index_fill(0, rows, 0)
        else:
            self._state = torch.where(done.unsqueeze(1), self.initial(self.spec.num_envs), state)
            self._elapsed = elapsed.masked_fill(done, 0)
        return self.observe(self._state)

    def reset_lanes(self, lanes: Tensor) -> Tree:
        assert self._state is not None, "reset comes before reset_lanes"
        return self._restart(self._state, self._elapsed, lanes, self.observe(self._state))

    def lane_state(self, lane: int) -> list[float]:
        """The state of one lane, for ``draw``."""
        assert self._state is not None, "reset comes before draw"
        return self._state[lane].tolist()  # type: ignore[no-any-return]

    def state_dict(self) -> State:
        if self._state is None:
            raise CheckpointError(f"environment {self.spec.name!r} has no state before its first reset; call reset")
        return {"state": self._state, "elapsed": self._elapsed, "generator": self.generator.get_state()}

    def load_state_dict(self, state: State) -> Tree:
        if len(state["state"]) != self.spec.num_envs:
            raise CheckpointError(
                f"environment {self.spec.name!r} has num_envs={self.spec.num_envs}, the saved state has"
                f" {len(state['state'])}"
            )
        self._state = state["state"].to(self.device)
        self._elapsed = state["elapsed"].to(self.device)
        self.generator.set_state(state["generator"].cpu())
        return self.observe(self._state)
