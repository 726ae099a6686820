"""Names and shapes of everything that crosses a boundary.

Axes: T rollout steps, N environment lanes, G agents of a team, B minibatch rows, E ensemble members, O observation,
A action, C choices of a multi-discrete action, H hidden. Tensors are time-major: ``[T, N, ...]``.

An observation is a tree (``tree``) of tensors whose shapes and types ``EnvSpec.obs`` names. Where ``num_agents`` is
set, rewards and actions have the axis G after N, and so has each leaf of an observation whose shape begins with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from .errors import SpecError
from .tree import Tree, named_leaves

Metrics = dict[str, Tensor]
"""``group/name`` -> scalar tensor on the learner's device; the host reads it only when it logs."""

State = dict[str, Any]
"""What a role needs to continue: nested dicts and lists of tensors and JSON values, nothing else."""

Dtype = Literal["float32", "uint8", "bool", "int64"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a tree without its leading axes."""

    shape: tuple[int, ...]
    dtype: Dtype = "float32"
    stack: int = 1
    """Above 1 the first axis of ``shape`` holds that many consecutive frames, the oldest first."""

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
        """Whether it holds pixels or cells: small integers or flags with two axes or more."""
        return self.dtype in ("uint8", "bool") and len(self.shape) > 1

    @property
    def frame(self) -> Leaf:
        """One frame of a stack; of any other leaf the leaf itself."""
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
    """What one agent does in a step: one of so many for each of its ``choices``, or ``dim`` numbers in [-1, 1]."""

    choices: tuple[int, ...] = ()
    """``(4,)`` is one choice of four, ``(3, 2, 2)`` three choices at once."""
    dim: int = 0

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
        """Shape and type of one agent's action: a number, a number for each choice [C], or floats [A]."""
        if not self.choices:
            return Leaf((self.dim,))
        return Leaf((), "int64") if len(self.choices) == 1 else Leaf((len(self.choices),), "int64")

    @property
    def num_outputs(self) -> int:
        """Outputs of a network that has one for every possibility of every choice, or for every number."""
        return sum(self.choices) or self.dim

    def random(self, lead: tuple[int, ...], generator: Generator) -> Tensor:
        """Uniform actions [*lead, ...]."""
        device = generator.device
        if self.kind == "continuous":
            return torch.rand(*lead, self.dim, generator=generator, device=device) * 2 - 1
        drawn = [torch.randint(n, lead, generator=generator, device=device) for n in self.choices]
        return drawn[0] if self.kind == "discrete" else torch.stack(drawn, -1)


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What a policy must know of its environment."""

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
    spaces: str = ""
    """JSON of the spaces of one environment (``envs.space_text``): what it shows and takes in its own units. Empty if
    these are the tensors that ``obs`` and ``action`` say."""

    def __post_init__(self) -> None:
        if isinstance(self.obs, tuple) and self.obs and all(isinstance(size, int) for size in self.obs):
            object.__setattr__(self, "obs", Leaf(self.obs))

    @property
    def team(self) -> tuple[int, ...]:
        """The axis G as a shape; empty without one."""
        return () if self.num_agents is None else (self.num_agents,)

    @property
    def action_leaf(self) -> Leaf:
        """What one lane does in a step."""
        leaf = self.action.leaf
        return Leaf(self.team + leaf.shape, leaf.dtype)

    @property
    def reward_leaf(self) -> Leaf:
        return Leaf(self.team)

    @property
    def obs_dim(self) -> int:
        """The length of an observation that is one vector of floats; any other is refused by the name of its leaf."""
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
    """For environments that show more than what a policy sees; others give a plain tree."""

    seen: Tree  # [N, (G,) ...]
    mask: Tensor | None = None  # [N, (G,) number of outputs] bool: which possibilities may be chosen
    state: Tensor | None = None  # [N, S] the state of the whole, for centralised critics
    active: Tensor | None = None  # [N, G] bool: agents that have not ended


def seen_part(obs: Tree) -> Tree:
    """What a policy sees of an observation, or of the leaves of observations, without mask and state."""
    return obs.seen if isinstance(obs, Obs) else obs


def mask_of(obs: Tree) -> Tensor | None:
    """The actions that may be chosen; None if all may."""
    return obs.mask if isinstance(obs, Obs) else None


class Fault(NamedTuple):
    """Something that went wrong in a lane, which was reset for it."""

    lane: int
    what: str
    where: str = ""  # file:line
    step: int = 0  # within its fragment
    trace: str = ""  # the whole traceback of what was raised
    is_breach: bool = False  # the environment returned something that does not fit its spec


class Step(NamedTuple):
    """What N environments return for one action each. No tensor of a step is ever written to again."""

    obs: Tree  # [N, ...] what the policy sees next: already reset where an episode ended
    reward: Tensor  # [N] or [N, G] float32
    terminated: Tensor  # [N] bool: the MDP ended, the successor has no value
    truncated: Tensor  # [N] bool: cut by a time limit, the successor still has a value; never with terminated
    next_obs: Tree  # [N, ...] the true successor of the action, also where an episode ended
    faults: tuple[Fault, ...] = ()
    """Lanes that failed and were reset: there the episode ends as truncated with reward 0 and the last observation as
    successor."""


class Rollout(NamedTuple):
    """T consecutive steps of N lanes."""

    obs: Tree  # [T, N, ...]
    action: Tensor  # [T, N] int64, [T, N, C] int64 or [T, N, A] float32, each with G after N for a team
    reward: Tensor  # [T, N] or [T, N, G]
    terminated: Tensor  # [T, N]
    truncated: Tensor  # [T, N]
    next_obs: Tree  # [T, N, ...]
    kept: Tree = ()  # [T, N, ...] what the policy keeps of its actions for learning: log-probabilities, or nothing
    carry: Tree = ()  # [N, ...] what the policy carried into the first step

    @property
    def num_steps(self) -> int:
        """Environment steps: a team takes one together."""
        return self.terminated.numel()


class Transition(NamedTuple):
    """A minibatch for temporal-difference learning; losses need neither n nor done flags."""

    obs: Tree  # [B, ...]
    action: Tensor  # [B, ...]
    reward: Tensor  # [B] or [B, G] discounted sum over the n steps taken
    discount: Tensor  # [B] gamma**n, 0 where the MDP ended
    next_obs: Tree  # [B, ...]
    weight: Tensor | None = None  # [B] importance weights, only of prioritised replay
    rows: Tensor | None = None  # [B] where in the buffer they came from, to update their priorities


class Update(NamedTuple):
    """What came of one update of an agent."""

    metrics: Metrics
    td_error: Tensor | None = None  # [B] absolute temporal-difference errors, for prioritised replay


class Windows(NamedTuple):
    """L stretches of K steps from the best of recent episodes, for the H-term."""

    obs: Tree  # [L, K, ...]
    action: Tensor  # [L, K, ...]
    weight: Tensor  # [L, K] gamma_h^k times the reward scaled to [0, 1]


class Episodes(NamedTuple):
    """The K training episodes that ended within a fragment, on the host."""

    returns: np.ndarray  # [K] float64, undiscounted and unscaled; of a team the mean over its agents
    lengths: np.ndarray  # [K] int64


class Fragment(NamedTuple):
    """A rollout with its address: which lanes, which call, which policy."""

    slot_group: int
    seq: int
    version: int
    rollout: Rollout
    episodes: Episodes
    faults: tuple[Fault, ...] = ()
    steps_lost: int = 0
    """Steps that were thrown away before these; if there are any, these do not follow the fragment before."""


class Weights(NamedTuple):
    """All a worker needs to act: one flat tensor and the learner's update counter."""

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
    return {"leaf": [list(tree.shape), tree.dtype, tree.stack]} if isinstance(tree, Leaf) else tree


def from_state(state: Any) -> Tree:
    """The inverse of ``to_state``."""
    match state:
        case list():
            return tuple(from_state(part) for part in state)
        case {"Obs": list(parts)} if len(state) == 1:
            return Obs(*map(from_state, parts))
        case {"dict": dict(parts)} if len(state) == 1:
            return {key: from_state(part) for key, part in parts.items()}
        case {"leaf": [list(shape), str(dtype), *stack]} if len(state) == 1:  # older files do not say the stack
            return Leaf(tuple(shape), dtype, *stack)  # type: ignore[arg-type]
    return state
