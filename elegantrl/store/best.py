"""``best.safetensors``: the best policy of a run, with everything needed to build it. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..envs.space_text import describe_tensors
from ..errors import CheckpointError
from ..nets.policies import FlatPolicy, Policy, PolicySpec
from ..types import EnvSpec
from .files import parse_json
from .side_files import SideFiles
from .team_units import AnyUnits, units_of
from .tensors import Shapes, load_weights, save_actor_pth, save_weights
from .untrusted import Refused, check_policy

BEST_FILE, ACTOR_FILE = "best.safetensors", "actor.pth"


class BestFile:
    """Writes the best policy so far, so that it survives if the run dies later; commits hold it too."""

    def __init__(self, folder: Path, spec: PolicySpec, env_spec: EnvSpec, side: SideFiles) -> None:
        self.folder, self.spec, self._side = folder, spec, side
        self._spaces = env_spec.spaces or describe_tensors(env_spec)

    def save(self, flat: Tensor, env_steps: int, mean: float) -> None:
        """Write the policy with the weights ``flat`` under its two names."""
        about = {"env_steps": str(env_steps), "mean": str(mean), "spaces": self._spaces}
        about["policy"] = json.dumps(self.spec.to_json())
        state = FlatPolicy(self.spec, torch.device("cpu")).load(flat.cpu()).state_dict()
        self._side.attempt(BEST_FILE, lambda: save_weights(self.folder / BEST_FILE, state, about))
        self._side.attempt(ACTOR_FILE, lambda: save_actor_pth(self.folder / ACTOR_FILE, state))


def load_best(folder: Path, allow_import: bool) -> tuple[Policy, PolicySpec, AnyUnits]:
    """The policy in a run folder, and its units; a policy named by import path only if the user allows it."""
    path = folder / BEST_FILE

    def check(shapes: Shapes, about: Mapping[str, str]) -> None:
        if not allow_import:
            check_policy(parse_json(about["policy"].encode(), "its description"), str(folder))
        compare_shapes(spec_from(about), shapes, allow_import)

    try:
        tensors, about = load_weights(path, check)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise CheckpointError(f"{path} holds NaN or infinity in {name!r:.80}; the policy is unusable")
        spec = spec_from(about)
        policy = spec.build(allow_import)
        policy.load_state_dict(tensors)
        units = units_from(about, tensors, folder)
    except (Refused, CheckpointError):
        raise
    except Exception as error:  # an untrusted description: after any error of the constructor the file is unusable
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} does not hold a policy of this version: {reason:.300}") from None
    return policy.requires_grad_(False), spec, units


def units_from(about: Mapping[str, str], tensors: Mapping[str, Tensor], folder: Path) -> AnyUnits:
    """The units of the environment; an observed choice becomes one-hot, so a layer must be as wide as its options."""
    shown = parse_json(about["spaces"].encode(), "its description")["observation"]
    widest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    if shown is not None and shown["kind"] == "discrete" and shown["n"] > widest:
        raise ValueError(f"an observation of {shown['n']} choices fits no layer of it")
    return units_of(about["spaces"], spec_from(about), str(folder))


def spec_from(about: Mapping[str, str]) -> PolicySpec:
    return PolicySpec.from_json(parse_json(about["policy"].encode(), "its description"))


def compare_shapes(spec: PolicySpec, found: Shapes, allow_import: bool = False) -> None:
    """Refuse a description whose tensors are not those of the file, before memory for either is taken."""
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in spec.build(allow_import).state_dict().items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ValueError(f"{name!r:.80} has the shape {found.get(name)}, its description says {expected.get(name)}")
