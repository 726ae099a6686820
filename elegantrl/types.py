"""The data types that cross the boundaries of modules and processes, with their shapes.

Axes: T rollout steps, N environment lanes, G agents of a team, B minibatch rows, E ensemble members, O observation,
A action, C choices of a multi-discrete action, H hidden. Tensors are time-major: ``[T, N, ...]``.

An observation is a tree (``tree``) of tensors whose shapes and types ``EnvSpec.obs`` names. Where ``num_agents`` is
set, rewards and actions have the axis G after N, and so has each leaf of an observation whose shape begins with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from .errors import SpecError
from .tree import Tree, named_leaves

Metrics = dict[str, Tensor]
"""``group/name`` -> scalar tensor on the learner's device; the host reads it only when it logs."""

State = dict[str, Any]
"""The state from which a role continues: nested dicts and lists of tensors and JSON values, nothing else."""

Dtype = Literal["float32", "uint8", "bool", "int64"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a tree without its leading axes."""

    shape: tuple[int, ...]
    dtype: Dtype = "float32"
    stack: int = 1
    """Above 1 the first axis of ``shape`` holds that many consecutive frames, the oldest first."""
    one_hot: bool = field(default=False, compare=False)
    """Whether a vector stands for choices: 1 for what was chosen, 0 for the rest."""

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype) or not all(type(size) is int and size >= 0 for size in self.shape):
            raise SpecError(
                f"a leaf has sizes of at least 0 and a type among {', '.join(get_args(Dtype))}; got"
                f" shape={self.shape!r:.80} and dtype={self.dtype!r:.80}"
            )
        if type(self.stack) is not int or self.stack < 1 or (self.stack > 1 and self.shape[:1] != (self.stack,)):
            raise SpecError(f"a leaf with stack={self.stack!r:.80} has that many frames; got shape={self.shape!r:.80}")

    @property
    def is_picture(self) -> bool:
        """Whether the leaf holds pixels or cells: small integers or flags with two axes or more."""
        return self.dtype in ("uint8", "bool") and len(self.shape) > 1

    @property
    def frame(self) -> Leaf:
        """The leaf of one frame; the leaf itself if it is no stack."""
        return Leaf(self.shape[1:], self.dtype) if self.stack > 1 else self

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def zeros(self, *lead: int, device: torch.device | None = None) -> Tensor:
        """A tensor with the axes ``lead`` in front."""
        return torch.zeros(*lead, *self.shape, dtype=self.torch_dtype, device=device)

    def empty(self, *lead: int, device: torch.device | None = None) -> Tensor:
        return torch.empty(*lead, *self.shape, dtype=self.torch_dtype, device=device)

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


ActionKind = Literal["discrete", "multi_discrete", "continuous"]


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """The action of one agent in one step: an index for each of ``choices``, or ``dim`` numbers in [-1, 1]."""

    choices: tuple[int, ...] = ()
    """The number of options of each choice: ``(4,)`` is one choice of four, ``(3, 2, 2)`` three choices at once."""
    dim: int = 0
    sizes: tuple[int, ...] = ()
    """How many of the ``dim`` numbers each agent of a team has; empty if all have all. The others are 0. Agents with
    fewer options than others have a mask instead."""

    def __post_init__(self) -> None:
        if bool(self.choices) == bool(self.dim) or min((*self.choices, 1)) < 1 or self.dim < 0:
            raise SpecError(
                f"an action has choices, each of at least one, or a dim of at least 1, and not both;"
                f" got choices={self.choices} and dim={self.dim}"
            )

    @property
    def kind(self) -> ActionKind:
        if not self.choices:
            return "continuous"
        return "discrete" if len(self.choices) == 1 else "multi_discrete"

    @property
    def leaf(self) -> Leaf:
        """Shape and type of one agent's action: an index, an index for each choice [C], or floats [A]."""
        if not self.choices:
            return Leaf((self.dim,))
        return Leaf((), "int64") if len(self.choices) == 1 else Leaf((len(self.choices),), "int64")

    @property
    def num_outputs(self) -> int:
        """The number of outputs of a network that has one for every option of every choice, or one for every float."""
        return sum(self.choices) or self.dim

    def random(self, lead: tuple[int, ...], generator: Generator) -> Tensor:
        """Uniform actions ``[*lead, ...]``."""
        device = generator.device
        if self.kind == "continuous":
            return torch.rand(*lead, self.dim, generator=generator, device=device) * 2 - 1
        drawn = [torch.randint(n, lead, generator=generator, device=device) for n in self.choices]
        return drawn[0] if self.kind == "discrete" else torch.stack(drawn, -1)


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The properties of an environment on which policies and memories depend."""

    name: str
    obs: Tree
    """A tree of ``Leaf``: ``Leaf((4,))`` is a vector of four floats, and so is the short form ``(4,)``; tuples, dicts
    and ``Obs`` of leaves are trees."""
    action: ActionSpec
    num_envs: int
    max_episode_steps: int | None = None
    target_return: float | None = None
    """The return at which the task counts as solved, if its authors name one."""
    num_agents: int | None = None
    """Agents of a team that act together; None for one agent and no axis G."""
    agent_names: tuple[str, ...] = ()
    """The names of these agents in the order of G; ``agent_0``, ``agent_1``, ... unless the environment has others."""
    spaces: str = ""
    """JSON of the spaces of one environment (``envs.space_text``) in its own units; empty if the environment takes and
    returns the tensors of ``obs`` and ``action`` themselves."""

    def __post_init__(self) -> None:
        if isinstance(self.obs, tuple) and self.obs and all(isinstance(size, int) for size in self.obs):
            object.__setattr__(self, "obs", Leaf(self.obs))
        if self.num_agents is not None and not self.agent_names:
            object.__setattr__(self, "agent_names", tuple(f"agent_{i}" for i in range(self.num_agents)))

    @property
    def team(self) -> tuple[int, ...]:
        """The axis G as a shape; empty without one."""
        return () if self.num_agents is None else (self.num_agents,)

    @property
    def action_leaf(self) -> Leaf:
        """Shape and type of one lane's action, with the axis G of a team."""
        leaf = self.action.leaf
        return Leaf(self.team + leaf.shape, leaf.dtype)

    @property
    def reward_leaf(self) -> Leaf:
        return Leaf(self.team)

    @property
    def obs_dim(self) -> int:
        """The length of an observation that is one vector of floats; any other raises an error that names its leaf."""
        return vector_dim(self.obs, self.name)


def vector_dim(obs: Tree, env_name: str = "") -> int:
    """The length of the only leaf of ``obs``, which must be a vector of floats."""
    leaves = named_leaves(obs)
    for path, leaf in leaves.items():
        if len(leaf.shape) != 1 or leaf.dtype != "float32" or len(leaves) > 1:
            owner = f"{env_name}: " if env_name else ""
            named = f"the observation {path!r}" if path else "the observation"
            raise SpecError(
                f"{owner}{named} is {leaf}, but a network of linear layers takes one vector of floats; name a network"
                f" that reads it (agent.network), or flatten the observation"
            )
    (leaf,) = leaves.values()
    return int(leaf.shape[0])


class Obs(NamedTuple):
    """An observation with parts that the network of a policy does not see; other environments return a plain tree."""

    seen: Tree  # [N, (G,) ...]
    mask: Tensor | None = None  # [N, (G,) number of outputs] bool: the options that are allowed
    state: Tensor | None = None  # [N, S] what only training may see: the global state of a team, a critic's observation
    active: Tensor | None = None  # [N, G] bool: agents that have not ended


def seen_part(obs: Tree) -> Tree:
    """The part of an observation, or of its leaves, that the network of a policy sees: without mask and state."""
    return obs.seen if isinstance(obs, Obs) else obs


def mask_of(obs: Tree) -> Tensor | None:
    """The mask of an observation; None if all options are allowed."""
    return obs.mask if isinstance(obs, Obs) else None


def state_of(obs: Tree) -> Any:
    """What only training may see [..., S], or its leaf; None if there is nothing."""
    return obs.state if isinstance(obs, Obs) else None


def active_of(obs: Tree) -> Tensor | None:
    """Which agents of a team have not ended [..., G]; None if all are always active."""
    return obs.active if isinstance(obs, Obs) else None


class Fault(NamedTuple):
    """A failure in a lane, after which the lane was reset."""

    lane: int
    what: str
    where: str = ""  # file:line
    step: int = 0  # within its fragment
    trace: str = ""  # the complete traceback of the error
    is_breach: bool = False  # the environment returned something that does not fit its spec


class Step(NamedTuple):
    """The result of one action in each of N lanes. The tensors of a step are never written to again."""

    obs: Tree  # [N, ...] the next observation of the policy: after the reset where an episode ended
    reward: Tensor  # [N] or [N, G] float32
    terminated: Tensor  # [N] bool: the MDP ended, the successor has no value
    truncated: Tensor  # [N] bool: cut by a time limit, the successor still has a value; never with terminated
    next_obs: Tree  # [N, ...] the true successor of the action, also where an episode ended
    faults: tuple[Fault, ...] = ()
    """Lanes that failed and were reset: there the episode ends as truncated with reward 0 and the last observation as
    successor."""
    won: Tensor | None = None  # [N] bool: whether an episode that ends here was won, of tasks that can be won


class Rollout(NamedTuple):
    """T consecutive steps of N lanes."""

    obs: Tree  # [T, N, ...]
    action: Tensor  # [T, N] int64, [T, N, C] int64 or [T, N, A] float32, each with G after N for a team
    reward: Tensor  # [T, N] or [T, N, G]
    terminated: Tensor  # [T, N]
    truncated: Tensor  # [T, N]
    next_obs: Tree  # [T, N, ...]
    kept: Tree = ()  # [T, N, ...] outputs of the policy that learning needs: log-probabilities, or nothing
    carry: Tree = ()  # [N, ...] the carry of the policy before the first step

    @property
    def num_steps(self) -> int:
        """The number of environment steps; the agents of a team share a step."""
        return self.terminated.numel()


class Transition(NamedTuple):
    """A minibatch for temporal-difference learning; losses need neither n nor done flags."""

    obs: Tree  # [B, ...]
    action: Tensor  # [B, ...]
    reward: Tensor  # [B] or [B, G] discounted sum over the n steps taken
    discount: Tensor  # [B] gamma**n, 0 where the MDP ended
    next_obs: Tree  # [B, ...]
    weight: Tensor | None = None  # [B] importance weights, only of prioritised replay
    rows: Tensor | None = None  # [B] their places in the buffer, to update their priorities


class Update(NamedTuple):
    """The results of one update of an agent."""

    metrics: Metrics
    td_error: Tensor | None = None  # [B] absolute temporal-difference errors, for prioritised replay


class Windows(NamedTuple):
    """The L best windows of K steps in recent episodes, for the H-term."""

    obs: Tree  # [L, K, ...]
    action: Tensor  # [L, K, ...]
    weight: Tensor  # [L, K] gamma_h^k times the reward scaled to [0, 1]


class Episodes(NamedTuple):
    """The K training episodes that ended within a fragment, on the host."""

    returns: np.ndarray  # [K] float64, undiscounted and unscaled; of a team the sum over its agents
    lengths: np.ndarray  # [K] int64


class Fragment(NamedTuple):
    """A rollout with its origin: the group of lanes, the number of the request, the version of the policy."""

    slot_group: int
    seq: int
    version: int
    rollout: Rollout
    episodes: Episodes
    faults: tuple[Fault, ...] = ()
    steps_lost: int = 0
    """Steps that were discarded before these; above 0 the fragment does not continue the previous one."""


class Weights(NamedTuple):
    """The policy as one flat tensor, and the learner's update counter."""

    version: int
    flat: Tensor  # [number of policy parameters and buffers] float32


# ---- trees as parts of a State


def to_state(tree: Tree) -> Any:
    """A tree as part of a ``State``, from which ``from_state`` restores it. Named tuples other than ``Obs`` become
    plain tuples, because a file must not name a class."""
    if isinstance(tree, Obs):
        return {"Obs": [to_state(part) for part in tree]}
    if isinstance(tree, tuple):
        return [to_state(part) for part in tree]
    if isinstance(tree, dict):
        return {"dict": {key: to_state(part) for key, part in tree.items()}}
    if isinstance(tree, Leaf):
        return {"leaf": [list(tree.shape), tree.dtype, tree.stack] + [True] * tree.one_hot}
    return tree


def from_state(state: Any) -> Tree:
    """The inverse of ``to_state``."""
    match state:
        case list():
            return tuple(from_state(part) for part in state)
        case {"Obs": list(parts)} if len(state) == 1:
            return Obs(*map(from_state, parts))
        case {"dict": dict(parts)} if len(state) == 1:
            return {key: from_state(part) for key, part in parts.items()}
        case {"leaf": [list(shape), str(dtype), *others]} if len(state) == 1:  # files of earlier versions have fewer
            return Leaf(tuple(shape), dtype, *others)  # type: ignore[arg-type]
    return state
