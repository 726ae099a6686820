"""A policy in a file acts as the policy of its run does, for every agent and every kind of space."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from deployed import CASES, Case

import elegantrl
from elegantrl.deploy import check
from elegantrl.deploy import export as export_module
from elegantrl.deploy.check import TOLERANCE, compare
from elegantrl.deploy.export import METADATA, export
from elegantrl.deploy.graph import PolicyGraph
from elegantrl.deploy.ports import nest
from elegantrl.errors import CheckpointError, ConfigError
from elegantrl.registry import agent_names
from elegantrl.store.trained import TrainedPolicy


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on 40 observations: a slow test compares on 1,000."""
    for name, value in {"ROWS": 5, "STEPS": 8, "EPISODE": 4}.items():
        monkeypatch.setattr(check, name, value)


def test_every_agent_is_a_case() -> None:
    assert {case.agent for case in CASES.values()} == set(agent_names())


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", CASES)
def test_the_graph_acts_as_the_policy(name: str) -> None:
    """Without tracing: raw observations in, actions of the environment out."""
    trained = CASES[name].load()
    graph = PolicyGraph(trained)

    def run(arrays: list[Any]) -> list[Any]:
        return [x.numpy() for x in graph(*map(torch.as_tensor, arrays))]

    agreement = compare(trained, graph, run)
    assert agreement.observations == 40 and agreement.difference <= TOLERANCE and agreement.ties == 0
    assert len({port.name for port in graph.inputs}) == len(graph.inputs)


@pytest.mark.usefixtures("few")
def test_an_onnx_file_of_a_team_acts_as_the_policy(tmp_path: Path) -> None:
    made = export(CASES["mappo"].load(), out=tmp_path / "policy.onnx")
    assert made.agreement.difference <= TOLERANCE and made.agreement.observations == 40
    assert made.num_bytes == made.path.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_every_file_acts_as_the_policy(tmp_path: Path, name: str, format: Any) -> None:
    made = export(CASES[name].load(), format=format, out=tmp_path / "policy")
    assert made.agreement.difference <= TOLERANCE and made.agreement.observations == 1000


# ---- what is in a file


def test_an_onnx_file_needs_nothing_but_raw_observations(tmp_path: Path) -> None:
    """By hand: a session, observations of Pendulum, torques between -2 and 2."""
    trained = CASES["td3"].load()
    export(trained, out=tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    obs = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 8.0], [-1.0, 0.0, -8.0]], np.float32)
    for rows in (obs, obs[:1], np.repeat(obs, 100, 0)):  # any number of them
        (action,) = session.run(None, {"obs": rows})
        assert action.shape == (len(rows), 1) and action.dtype == np.float32 and np.abs(action).max() <= 2
        np.testing.assert_allclose(action, trained.act(rows), atol=2e-5)
    about = {entry.key: entry.value for entry in onnx.load(tmp_path / "a.onnx").metadata_props}
    assert (about["agent"], about["env"], about["elegantrl"]) == ("td3", "Pendulum-v1", elegantrl.__version__)
    assert json.loads(about["spaces"])["action"]["high"] == 2.0
    assert json.loads(about["inputs"]) == [{"name": "obs", "shape": ["N", 3], "dtype": "float32"}]


def test_a_torch_file_needs_no_elegantrl(tmp_path: Path) -> None:
    trained = CASES["td3"].load()
    export(trained, format="torch", out=tmp_path / "a.pt2")
    extra = {METADATA: ""}
    module = torch.export.load(tmp_path / "a.pt2", extra_files=extra).module()
    obs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 8.0], [-1.0, 0.0, -8.0]])
    for rows in (obs, obs[:1]):
        (action,) = module(rows)
        np.testing.assert_allclose(action.numpy(), trained.act(rows.numpy()), atol=2e-5)
    assert json.loads(extra[METADATA])["agent"] == "td3"


@pytest.mark.usefixtures("few")
def test_inputs_have_the_names_and_types_of_the_environment(tmp_path: Path) -> None:
    made = export(CASES["gru and frames"].load(), out=tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(made.path)
    found = {x.name: (x.type, x.shape[1:]) for x in session.get_inputs()}
    assert found == {
        "obs.camera": ("tensor(uint8)", [40, 36, 3]),
        "obs.speed": ("tensor(double)", []),
        "obs.gear": ("tensor(int64)", []),
        "state.frames.0": ("tensor(uint8)", [2, 40, 36, 3]),
        "state.memory.0": ("tensor(float)", [64]),
        "first": ("tensor(bool)", []),
    }
    assert made.inputs == tuple(found)
    assert made.outputs == ("action", "next_state.frames.0", "next_state.memory.0")


def test_an_episode_that_begins_uses_no_state(tmp_path: Path) -> None:
    """Rows that begin an episode beside rows that do not."""
    graph = PolicyGraph(CASES["gru and frames"].load())
    rng = np.random.default_rng(0)
    inputs = {port.name: torch.as_tensor(check.sample(port, rng)[:2]) for port in graph.inputs}
    inputs["first"] = torch.tensor([True, False])
    other = {name: x.clone() for name, x in inputs.items()}
    other["state.memory.0"][0] = 7.0
    other["state.frames.0"][0] = 9
    first, second = (dict(zip(graph.outputs, graph(*x.values()), strict=True)) for x in (inputs, other))
    for port, x in first.items():
        assert torch.equal(x, second[port]), port.name
    frames = first[next(port for port in graph.outputs if port.name == "next_state.frames.0")]
    assert torch.equal(frames[0, 0], inputs["obs.camera"][0]) and torch.equal(frames[0, 1], frames[0, 0])
    assert torch.equal(frames[1, 0], inputs["state.frames.0"][1, 1])
    assert torch.equal(frames[1, 1], inputs["obs.camera"][1])


@pytest.mark.usefixtures("few")
def test_several_runs_are_one_policy(tmp_path: Path) -> None:
    runs = [Case(agent, "CartPole-v1").write(tmp_path / agent) for agent in ("ppo", "dqn")]
    made = elegantrl.export(runs, weights=[3, 1], out=tmp_path / "a.onnx")
    ensemble, session = TrainedPolicy.ensemble(runs, [3, 1]), onnxruntime.InferenceSession(made.path)
    obs = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    (action,) = session.run(None, {"obs": obs})
    assert np.array_equal(action, ensemble.act(obs)) and 0 < action.mean() < 1


def test_paths_and_names_of_parts() -> None:
    assert nest({("obs", "a", 0): 1, ("obs", "a", 1): 2, ("obs", "b"): 3}) == {"obs": {"a": (1, 2), "b": 3}}


# ---- what is refused


def test_a_file_that_acts_differently_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, whole = CASES["td3"].load(), export_module.make_file

    def spoiled(*args: Any) -> Any:
        data, run = whole(*args)
        return data, lambda arrays: [x + np.float32(1e-3) for x in run(arrays)]

    monkeypatch.setattr(export_module, "make_file", spoiled)
    with pytest.raises(ConfigError, match=r"differs from the trained one by 0.0005, and 1e-05 is allowed"):
        export(trained, format="torch", out=tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ["ppo", "d3qn", "multi-discrete", "mask of several choices, values", "mappo", "vdn"])
def test_another_option_is_refused_unless_it_is_as_good(name: str) -> None:
    trained = CASES[name].load()
    graph = PolicyGraph(trained)

    def run(arrays: list[Any]) -> list[Any]:
        return [x.numpy() for x in graph(*map(torch.as_tensor, arrays))]

    def fixed(arrays: list[Any]) -> list[Any]:
        """The first and the last option of everything in turn."""
        written = run(arrays)
        for i, port in enumerate(graph.side.outputs):
            written[i] = np.stack([port.low if row % 2 else port.high for row in range(5)]).astype(written[i].dtype)
        return written

    if "mask" not in name and name != "mappo":
        for x in trained.policy.parameters():
            x.zero_()  # all options have the same score
        assert compare(trained, graph, fixed).difference == 0
        trained = CASES[name].load()
        graph.policy.load_state_dict(trained.policy.state_dict())
    with pytest.raises(ConfigError, match="takes another option than the trained one"):
        compare(trained, graph, fixed)


def test_bad_input_is_one_sentence(cli: Callable[..., Any], tmp_path: Path) -> None:
    run = CASES["ppo"].write(tmp_path / "run")
    with pytest.raises(ConfigError, match="format='pickle' is not one of onnx, torch"):
        export(run, format="pickle")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is a folder; name a file in it"):
        export(run, out=tmp_path)
    with pytest.raises(CheckpointError, match="there is no run folder"):
        export(tmp_path / "none")
    assert cli("export").sentence.startswith("RUN is missing")
    assert "--format 'pickle' is not one of" in cli("export", run, "--format", "pickle").sentence


def test_the_command_line(cli: Callable[..., Any], tmp_path: Path) -> None:
    run = CASES["ppo"].write(tmp_path / "run")
    shown = cli("export", run, "--format", "torch", "--out", tmp_path / "deep" / "a.pt2")
    assert shown.code == 0, shown.err
    first, second = shown.out.splitlines()
    assert first.endswith("bytes, obs -> action") and second == "largest difference 0 over 1,000 observations"
    assert torch.export.load(tmp_path / "deep" / "a.pt2").module()(torch.zeros(3, 4))[0].shape == (3,)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"the format onnx needs onnxruntime: pip install 'elegantrl\[export\]'"):
        export(CASES["ppo"].load(), out=tmp_path / "a.onnx")
