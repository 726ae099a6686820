"""An ensemble of trained policies as a folder that ``TrainedPolicy.load`` reads like that of a single run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .best import BEST_FILE
from .files import write_atomic
from .tensors import load_weights, save_weights
from .trained import TrainedPolicy
from .untrusted import CONFIG_FILE


def save_ensemble(run_dirs: Sequence[str | Path], folder: Path, allow_import: bool = False) -> TrainedPolicy:
    """Write the average of the policies of several runs to ``folder``, with the settings of the first."""
    policy = TrainedPolicy.ensemble(run_dirs, allow_import=allow_import)
    folder.mkdir(parents=True, exist_ok=True)
    _, about = load_weights(Path(run_dirs[0]) / BEST_FILE)
    about |= {"policy": json.dumps(policy.spec.to_json()), "mean": "nan"}
    save_weights(folder / BEST_FILE, policy.policy.state_dict(), about)
    write_atomic(folder / CONFIG_FILE, policy.config.to_yaml().encode())
    return policy
