"""The benchmark of GPUs: small on a CPU, and one sentence where there is no GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_everything_runs_small_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpu import ON_CPU, main

    out = tmp_path / "gpu.json"
    assert main(["--device", "cpu", "--gradients", "auto", "--seconds", "0", "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    found = {(f["what"], f["env"], f["lanes"]) for f in written["figures"]}
    tensors = [(env, lanes) for env in ("TensorCartPole", "Chasing") for lanes in ON_CPU.lanes]
    assert found == {(what, *each) for what in ("env", "ppo") for each in tensors} | {("sac", "TensorPendulum", 16)}
    assert all(f["value"] > 0 and 0 <= f["idle"] <= 1 and f["waits"] is None for f in written["figures"])
    assert {f["unit"] for f in written["figures"] if f["what"] == "sac"} == {"updates/s"}
    shown = capsys.readouterr().out
    assert "CPU, small sizes" in shown and str(out) in shown


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_gradients_are_measured_too(tmp_path: Path) -> None:
    from gpu import main

    out = tmp_path / "gpu.json"
    assert main(["--device", "cpu", "--gradients", "compiled", "--seconds", "0", "--out", str(out)]) == 0
    trained = [f for f in json.loads(out.read_text())["figures"] if f["what"] != "env"]
    assert {f["gradients"] for f in trained} == {"compiled"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from gpu import main

    assert main([]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        f"gpu.py: torch {torch.__version__} finds no GPU here; run it where there is one, or with --device cpu"
    ]
