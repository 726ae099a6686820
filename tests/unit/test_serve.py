"""A served policy acts as the policy of its run does, within limits, and says what it is."""

from __future__ import annotations

import html
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from deployed import CASES
from safetensors.numpy import load, save
from serving import JSON, TENSORS, Client, plain, serving

from elegantrl.deploy.app import Bucket, Limits
from elegantrl.errors import ConfigError


@pytest.fixture(scope="module")
def cart() -> Iterator[Client]:
    with serving(CASES["ppo"].load()) as client:
        yield client


# ---- actions


def test_single_observations_and_batches(cart: Client) -> None:
    obs = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    expected = cart.trained.act(obs)
    assert 0 < expected.mean() < 1
    assert [cart.act({"obs": row.tolist()})["action"] for row in obs] == expected.tolist()
    assert [row["action"] for row in cart.act([{"obs": row.tolist()} for row in obs])] == expected.tolist()
    status, body, headers = cart.ask("POST", "/act", save({"obs": obs}), TENSORS)
    assert status == 200 and headers["content-type"] == "application/x-safetensors"
    assert np.array_equal(load(body)["action"], expected)


def test_continuous_actions_are_in_the_units_of_the_environment() -> None:
    with serving(CASES["td3"].load()) as client:
        obs = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 8.0]], np.float32)
        shown = [row["action"] for row in client.act([{"obs": row.tolist()} for row in obs])]
        np.testing.assert_allclose(shown, client.trained.act(obs), atol=1e-5)


@pytest.mark.parametrize("name", ["gru and frames", "lstm"])
def test_a_state_goes_to_the_client_and_back(name: str) -> None:
    """Two episodes: one in JSON and the other in tensors, beside a row that begins anew at each step."""
    trained = CASES[name].load()
    space: Any = trained.units.observation_space  # type: ignore[union-attr]
    space.seed(0)
    mask = {"mask": [True, False, True]} if name == "lstm" else {}
    with serving(trained) as client:
        row: dict[str, Any] = dict(mask)
        carry: dict[str, Any] = {}
        tensors: dict[str, Any] = {}
        for step in range(6):
            obs = space.sample()
            row["obs"] = plain(obs)
            answer, fresh = client.act([row, {"obs": plain(obs), **mask}])
            expected = trained.act(obs, carry, **mask)
            assert answer["action"] == expected == client.act(row)["action"]
            assert fresh["action"] == trained.act(obs, **mask)
            leaves = {f"obs.{key}": x for key, x in obs.items()} if isinstance(obs, dict) else {"obs": obs}
            leaves |= {key: np.array(flags) for key, flags in mask.items()}
            body = save(tensors | {key: np.asarray(x)[None] for key, x in leaves.items()})
            tensors = load(client.ask("POST", "/act", body, TENSORS)[1])
            assert tensors.pop("action")[0] == expected, step
            row["state"] = answer["state"]


def test_observations_of_any_form() -> None:
    with serving(CASES["nested"].load()) as client:
        obs = {"a": [[0.1] * 5, 1], "b": [0.5] * 5, "unused": "x"}
        raw = {"a": (np.full(5, 0.1, np.float32), 1), "b": np.full(5, 0.5, np.float32)}
        assert client.act({"obs": obs})["action"] == client.trained.act(raw)
        assert client.refused(b'{"obs": {"a": [[1, 2, 3, 4, 5]], "b": [1, 2, 3, 4, 5]}}') == "obs.a.1 is missing"
        assert "obs.a.1 has a value that is out of range; expected whole numbers from 0 to 1" in client.refused(
            b'{"obs": {"a": [[1, 2, 3, 4, 5], 2], "b": [1, 2, 3, 4, 5]}}'
        )


def test_masks() -> None:
    with serving(CASES["mask"].load()) as client:
        for mask in ([True, False, False], [False, True, False], [0, 0, 1]):
            assert client.act({"obs": [2.0], "mask": mask})["action"] == mask.index(1)
        assert client.refused(b'{"obs": [2]}') == "mask is missing"
        assert "forbids every action" in client.refused(b'{"obs": [2], "mask": [false, false, false]}')
        assert "out of range" in client.refused(b'{"obs": [2], "mask": [2, 0, 0]}')
    with serving(CASES["mask in the observation"].load()) as client:
        assert client.act({"obs": {"observation": [2], "action_mask": [0, 0, 1]}})["action"] == 2
        assert client.refused(b'{"obs": {"observation": [2]}}') == "obs.action_mask is missing"


def test_teams_by_agent() -> None:
    trained = CASES["team with memory"].load()
    rng = np.random.default_rng(0)
    sizes = {"runner": 3, "lifter": 5, "scout": 4}
    with serving(trained) as client:
        row: dict[str, Any] = {}
        carry: dict[str, Any] = {}
        for names in (["runner", "lifter", "scout"], ["lifter"], ["scout", "runner"], ["runner", "lifter", "scout"]):
            obs = {name: rng.standard_normal(sizes[name]).astype(np.float32) for name in names}
            masks = {"lifter": [True, False, True, True]} if "lifter" in names else {}
            row |= {"obs": plain(obs), "mask": masks}
            answer = client.act(row)
            assert answer["action"] == trained.act(obs, carry, mask=masks)
            np.testing.assert_allclose(answer["state"]["memory"][0], carry["carry"][0][0], atol=1e-6)
            row["state"] = answer["state"]
        assert "there is no agent 'pilot' in obs; the agents are runner" in client.refused(b'{"obs": {"pilot": [1]}}')
        assert client.refused(b'{"obs": {}}').startswith("obs has no agent")
        body = save({"obs.lifter": np.zeros((2, 5), np.float32)})
        answer = load(client.ask("POST", "/act", body, TENSORS)[1])
        assert set(answer) == {"action.lifter", "state.memory.0"} and not answer["state.memory.0"][:, [0, 2]].any()


# ---- limits


def test_large_requests_are_refused() -> None:
    with serving(CASES["ppo"].load(), max_bytes=1000, max_rows=3) as client:
        row = {"obs": [0.0] * 4}
        assert len(client.act([row] * 3)) == 3
        assert "4 rows, and at most 3" in client.refused(json.dumps([row] * 4).encode())
        assert "more than 1000 bytes" in client.refused(b" " * 1001, 413)
        parts = iter([b" " * 600, b" " * 600])  # without a length in front
        client.connection.request("POST", "/act", parts, JSON, encode_chunked=True)
        assert client.connection.getresponse().status == 413
        client.connection.close()
        assert client.act(row)


def test_too_many_requests_are_refused() -> None:
    with serving(CASES["ppo"].load(), rate=0.01, max_requests=1) as client:
        row = json.dumps({"obs": [0.0] * 4}).encode()
        assert client.ask("POST", "/act", row)[0] == 200
        status, body, headers = client.ask("POST", "/act", row)
        assert status == 429 and "more than 0.01 requests per second" in json.loads(body)["error"]
        assert 90 <= int(headers["retry-after"]) <= 100
        assert client.ask("GET", "/health")[0] == 200  # never limited


def test_too_many_requests_at_once_are_refused() -> None:
    with (
        serving(CASES["ppo"].load(), max_requests=1) as client,
        socket.create_connection(("127.0.0.1", client.port)) as slow,
    ):
        slow.sendall(
            b"POST /act HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
        )
        while "in_flight 1" not in client.ask("GET", "/metrics")[1].decode():
            pass
        assert "more than 1 requests at once" in client.refused(b"{}", 429)


def test_a_bucket_lets_its_rate_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bucket = Bucket(2.0)
    assert [bucket.take() for _ in range(3)] == [0, 0, 0.5]
    now[0] = 0.25
    assert bucket.take() == 0.25
    now[0] = 0.5
    assert [bucket.take() for _ in range(2)] == [0, 0.5]
    assert [Bucket(0.0).take() for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("limits", [{"max_rows": 0}, {"max_bytes": -1}, {"max_requests": 0}, {"rate": -1.0}])
def test_limits_that_make_no_sense_are_refused(limits: Any) -> None:
    with pytest.raises(ConfigError, match="is out of range"):
        Limits(**limits)


# ---- pages


def test_the_server_says_what_it_serves(cart: Client) -> None:
    about = json.loads(cart.ask("GET", "/info")[1])
    assert (about["agent"], about["env"]) == ("ppo", "CartPole-v1")
    assert about["inputs"] == [{"name": "obs", "shape": ["N", 4], "dtype": "float32"}]
    assert about["spaces"]["action"] == {"kind": "discrete", "n": 2, "start": 0}
    assert about["limits"]["max_rows"] == 1024
    page = cart.ask("GET", "/docs")[1].decode()
    assert cart.ask("GET", "/")[:2] == (200, page.encode())  # the address that is printed first
    assert html.escape('{"obs": [0, 0, 0, 0]}') in page
    assert "POST /act" in page and "<script" not in page and "http" not in re.sub(r"HTTP|application/\S+", "", page)


def test_metrics_are_counted() -> None:
    with serving(CASES["ppo"].load()) as client:
        client.act([{"obs": [0] * 4}] * 5)
        client.act({"obs": [0] * 4})
        client.refused(b"{}")
        client.ask("GET", "/a/b/c")
        text = client.ask("GET", "/metrics")[1].decode()
    assert 'elegantrl_requests_total{path="/act",status="200"} 2' in text
    assert 'elegantrl_requests_total{path="/act",status="400"} 1' in text
    assert 'elegantrl_requests_total{path="other",status="404"} 1' in text
    assert "elegantrl_rows_total 6\n" in text and "elegantrl_act_seconds_count 2\n" in text
    assert 'elegantrl_act_seconds_bucket{le="+Inf"} 2\n' in text
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]+"(,\w+="[^"]+")*\})? [0-9.e+-]+', line), line
