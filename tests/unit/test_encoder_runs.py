"""Runs with encoders: what a run says, and which encoders of the user's it takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elegantrl.config.resolve import resolve_config
from elegantrl.envs.tensor import TensorEnv
from elegantrl.errors import ConfigError
from elegantrl.runtime.progress import Silent
from elegantrl.runtime.train import check_networks
from elegantrl.store.trained import TrainedPolicy
from elegantrl.types import ActionSpec, Leaf


class Mine(nn.Module):
    """An encoder of the user's."""

    def __init__(self, leaf: Leaf):
        super().__init__()
        self.layer = nn.Linear(leaf.num_bytes, 5)

    def forward(self, picture: Tensor) -> Tensor:
        return self.layer(picture.flatten(1).float())  # type: ignore[no-any-return]


class Dots(TensorEnv):
    """Shows a small picture of where it is."""

    obs, action, max_episode_steps = Leaf((2, 4), "uint8"), ActionSpec(choices=(4,)), 5

    def initial(self, num_rows: int) -> Tensor:
        return torch.zeros(num_rows, 1)

    def dynamics(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return action.unsqueeze(1).float(), (action == 3).float(), torch.zeros(len(state), dtype=torch.bool)

    def observe(self, state: Tensor) -> Tensor:
        return torch.cat([state, state + 1], 1).byte().unsqueeze(2) * torch.arange(4, dtype=torch.uint8)


class Messages(Silent):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


RUN: dict[str, Any] = {"num_envs": 2, "horizon": 5, "max_steps": 20, "hidden": (4,), "eval": {"episodes": 1}}


@pytest.mark.parametrize(
    ("encoder", "text"),
    [
        ("auto", "encoder: embedding for the observation (2, 4) uint8, 128 features"),
        ("flat", "encoder: flat for the observation (2, 4) uint8, 8 features"),
        (Mine, f"encoder: {__name__}:Mine, 5 features"),
    ],
)
def test_a_run_names_its_encoder(run_quietly: Any, tmp_path: Path, encoder: Any, text: str) -> None:
    said = Messages()
    run = run_quietly("ppo", Dots, encoder=encoder, run_dir=tmp_path, display=said, **RUN)
    assert text in said.texts
    if encoder is Mine:
        with pytest.raises(ConfigError, match="import path"):
            TrainedPolicy.load(run.run_dir)
        assert TrainedPolicy.load(run.run_dir, allow_import=True).policy.encoder is not None


def test_what_has_no_import_path_is_refused(run_quietly: Any, tmp_path: Path) -> None:
    class Inside(Mine):
        pass

    for encoder in (lambda leaves: Mine(leaves), Inside, Mine(Leaf((8,)))):
        with pytest.raises(ConfigError, match=r"the encoder .* has no import path, by which other processes find it"):
            run_quietly("ppo", Dots, encoder=encoder, run_dir=tmp_path, **RUN)


def test_a_config_file_does_not_choose_the_encoder(cli: Any, tmp_path: Path, run_quietly: Any) -> None:
    run_quietly("ppo", "TensorCartPole", run_dir=tmp_path / "run", **RUN)
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "other.yaml").write_text(text.replace("encoder: auto", "encoder: this:zen"))
    outcome = cli("train", "--config", tmp_path / "other.yaml")
    assert outcome.code == 2 and "names this:zen, whose import runs code; add --allow-import" in outcome.sentence


def test_an_encoder_of_a_notebook_stays_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"agent": {"encoder": "__main__:Mine"}}
    inline, process = (
        resolve_config("ppo", "TensorCartPole", {**settings, "execute": {"executor": name}})[0]
        for name in ("inline", "process")
    )
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    check_networks(process)
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    check_networks(inline)
    with pytest.raises(ConfigError, match="__main__:Mine is defined in a notebook or an interactive session"):
        check_networks(process)
