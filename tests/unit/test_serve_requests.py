"""Requests that are wrong get one sentence and end nothing, and the schema of a server says which ones are right."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from deployed import CASES, Case
from gymnasium import spaces
from safetensors.numpy import save
from serving import JSON, TENSORS, Client, Served, plain, serving

from elegantrl.store.trained import TrainedPolicy


@pytest.fixture(scope="module")
def cart() -> Iterator[Client]:
    with serving(CASES["ppo"].load()) as client:
        yield client


BAD: list[tuple[bytes, str]] = [
    (b"", "the body is no JSON"),
    (b"{", "the body is no JSON"),
    (b"\xff\xfe\xfd", "the body is no JSON"),
    (b"[" * 100_000, "the body is no JSON"),
    (b'{"obs": [NaN, 0, 0, 0]}', "NaN is no number of JSON"),
    (b'{"obs": [1e999, 0, 0, 0]}', "obs has a value that is out of range; expected float32"),
    (b'{"obs": [1e300, 0, 0, 0]}', "obs has a value that is out of range; expected float32"),
    (b'{"obs": [1' + b"0" * 400 + b", 0, 0, 0]}", "out of range"),
    (b'{"obs": [1' + b"0" * 5000 + b", 0, 0, 0]}", "the body is no JSON"),
    (b'{"obs": [0, 0, 0]}', "obs has the shape (3,), expected (4,)"),
    (b'{"obs": [[0, 0, 0, 0]]}', "obs has the shape (1, 4), expected (4,)"),
    (b'{"obs": [[0], 0, 0, 0]}', "obs holds what is no number"),
    (b'{"obs": [true, 0, 0, 0]}', "obs holds what is no number"),
    (b'{"obs": ["0", 0, 0, 0]}', "obs holds what is no number"),
    (b'{"obs": [null, 0, 0, 0]}', "obs holds what is no number"),
    (b'{"obs": {"a": 1}}', "obs has the shape (), expected (4,)"),
    (b'{"obs": "abcd"}', "obs has the shape (), expected (4,)"),
    (b"{}", "obs is missing"),
    (b"null", 'the body is no object {"obs": ...} and no list of such objects'),
    (b"[1]", "no list of such objects"),
    (b"[]", "the request has no rows"),
    (b'{"observation": [0, 0, 0, 0]}', "there is no 'observation' in a request; its keys are obs"),
    (b'{"obs": [0, 0, 0, 0], "mask": [1, 1]}', "there is no 'mask' in a request"),
]


@pytest.mark.parametrize(("body", "message"), BAD, ids=lambda x: str(x)[:30])
def test_a_bad_request_gets_one_sentence(cart: Client, body: bytes, message: str) -> None:
    assert message in cart.refused(body)
    assert cart.ask("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"obs": np.zeros((2, 4))}, "obs is float64 (2, 4), expected float32 ('N', 4)"),
        ({"obs": np.zeros((2, 3), np.float32)}, "obs is float32 (2, 3)"),
        ({"obs": np.float32(0)}, "obs is float32 ()"),
        ({"obs": np.full((2, 4), np.nan, np.float32)}, "obs has NaN"),
        ({"obs": np.full((2, 4), 2e18, np.float32)}, "out of range; expected float32 from -1e+18 to 1e+18"),
        ({"obs": np.zeros((0, 4), np.float32)}, "the request has no rows"),
        ({"x": np.zeros((2, 4), np.float32)}, "there is no input 'x'; the inputs are obs"),
        ({}, "the request has no rows"),
    ],
)
def test_bad_tensors_get_one_sentence(cart: Client, tensors: Any, message: str) -> None:
    body = save({name: np.asarray(x) for name, x in tensors.items()})
    assert message in cart.refused(body, headers=TENSORS)
    assert "not in the safetensors format" in cart.refused(body[:-1], headers=TENSORS)


def test_bad_states_get_one_sentence() -> None:
    with serving(CASES["gru"].load()) as client:
        obs = b'{"obs": [1, 0, 0], "state": '
        assert client.refused(obs + b'{"memory": [[1, 2]]}}') == "state.memory.0 has the shape (2,), expected (12,)"
        assert "state.memory.0 is missing" in client.refused(obs + b'{"memory": []}}')
        assert "state.memory.0 is missing" in client.refused(obs + b"null}")
        huge = json.dumps({"obs": [1, 0, 0], "state": {"memory": [[3e38] * 12]}}).encode()
        assert client.refused(huge) == (
            "state.memory.0 has a value that is out of range; expected float32 from -1e+18 to 1e+18"
        )


@pytest.mark.parametrize("name", ["td3", "gru", "lstm", "nested", "mappo"])
def test_the_largest_numbers_are_answered(name: str) -> None:
    """All that the schema allows, with equal and with different signs: sums in the network stay finite."""
    trained = CASES[name].load()
    with serving(trained) as client:
        obs = plain_sample(trained)
        mask = {"mask": [True] * trained.units.action.num_outputs} if name == "lstm" else {}
        for signs in ([1], [-1], [1, -1]):
            row = {"obs": enlarged(obs, itertools.cycle(signs)), **mask}
            got = client.act(row)
            if "state" in got:
                client.act(row | {"state": enlarged(got["state"], itertools.cycle(signs))})


def enlarged(value: Any, signs: Iterator[int]) -> Any:
    """The value with numbers that are as large as they may be in the place of its fractions."""
    if isinstance(value, dict):
        return {key: enlarged(part, signs) for key, part in value.items()}
    if isinstance(value, list):
        return [enlarged(part, signs) for part in value]
    return next(signs) * 1e18 if isinstance(value, float) else value


def test_addresses_methods_and_content_types(cart: Client) -> None:
    assert cart.ask("GET", "/nothing")[0] == 404
    status, _, headers = cart.ask("GET", "/act")
    assert (status, headers["allow"]) == (405, "POST")
    assert cart.ask("DELETE", "/health")[0] == 405
    status, body, headers = cart.ask("HEAD", "/health")
    assert (status, body) == (200, b"") and int(headers["content-length"]) > 0
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/x-pickle", ""):
        assert "expected application/json or application/x-safetensors" in cart.refused(
            b"{}", 415, {"content-type": kind}
        )
    assert cart.act({"obs": [0] * 4}) and cart.ask("POST", "/act", b"{}", {"Content-Type": "Application/JSON; x=1"})[0]


def test_another_name_is_not_served(cart: Client) -> None:
    """A page of another site must not reach a server of this machine under a name of its own."""
    assert cart.ask("GET", "/health", headers={"host": "evil.example"})[0] == 403
    for host in ("localhost", f"127.0.0.1:{cart.port}", "[::1]:80"):
        assert cart.ask("GET", "/health", headers={"host": host})[0] == 200


# ---- the schema


@pytest.mark.parametrize("name", ["ppo", "choices", "nested", "mask", "gru and frames", "mappo", "multi-discrete"])
def test_the_schema_is_exact(name: str) -> None:
    """What a server answers fits the schema of answers; what it refuses does not fit that of requests."""
    trained = CASES[name].load()
    rng = random.Random(0)
    with serving(trained) as client:
        described = json.loads(client.ask("GET", "/openapi.json")[1])
        root = {"components": described["components"]}
        row, answer = (
            jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{part}", **root})
            for part in ("Row", "Answer")
        )
        sample = {"obs": plain_sample(trained)}
        if name == "mask":
            sample["mask"] = [True, False, True]
        row.validate(sample)
        got = client.act(sample)
        answer.validate(got)
        example = described["paths"]["/act"]["post"]["requestBody"]["content"]["application/json"].get("example")
        assert (example is None) == (name == "gru and frames")  # a picture is too long to be shown
        if example is not None:
            row.validate(example)
            answer.validate(client.act(example))
        if "state" in got:
            row.validate(sample | {"state": got["state"]})
            client.act(sample | {"state": got["state"]})
        for _ in range(60):
            changed = spoil(json.loads(json.dumps(sample)), rng)
            status, _, _ = client.ask("POST", "/act", json.dumps(changed).encode())
            assert (status == 200) == row.is_valid(changed), changed


def plain_sample(trained: TrainedPolicy) -> Any:
    if hasattr(trained.units, "agents"):
        shown = {name: own.observation_space for name, own in trained.units.agents.items()}
        return {name: plain(space.sample()) for name, space in shown.items()}
    space: spaces.Space[Any] = trained.units.observation_space
    space.seed(1)
    return plain(space.sample())


def spoil(value: Any, rng: random.Random) -> Any:
    """The value with one change somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: spoil(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:at] + value[at + 1 :]
        return [*value[:at], spoil(value[at], rng), *value[at + 1 :]]
    return rng.choice([None, "x", True, 1, 0, 0.5, -1, 10**30, 1e39, [], {}, [[1]], value])


# ---- many of them


def test_malformed_requests_end_nothing(cart: Client) -> None:
    malformed(cart.port, 500)
    assert cart.act({"obs": [0.0] * 4})


@pytest.mark.slow
def test_ten_thousand_malformed_requests(tmp_path: Path) -> None:
    server = Served(CASES["ppo"].write(tmp_path / "run"), "--port", "0")
    malformed(server.port, 1000)  # what is loaded at first use
    before = server.memory()
    for seed in range(10):
        malformed(server.port, 1000, seed)
    after = server.memory()
    assert server.act({"obs": [0.0] * 4}) == 200
    assert server.stop() == 0 and server.err == ""
    assert after - before < 10 << 20, (before, after)


def malformed(port: int, num: int, seed: int = 0) -> None:
    """Requests that are wrong in many ways; each gets a 4xx answer or a closed connection."""
    rng = random.Random(seed)
    good = save({"obs": np.zeros((2, 4), np.float32)})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(num):
        kind = rng.randrange(10)
        noise = rng.randbytes(rng.randrange(1, 300))
        if kind == 0:  # not HTTP
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(noise + b"\r\n\r\n")
            continue
        if kind == 1:  # a body that never comes
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(b"POST /act HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
                raw.sendall(b"content-length: %d\r\n\r\n{" % rng.randrange(2, 10**9))
            continue
        body: bytes = rng.choice([rng.choice(BAD)[0], noise, b'{"obs": ' + noise, good[: rng.randrange(len(good))]])
        headers = rng.choice([JSON, TENSORS]) if kind > 3 else {"content-type": f"a/b{kind}", "x": "y" * 3000}
        path, method = ("/act", "POST") if kind > 2 else (f"/{noise.hex()[:50]}", rng.choice(["GET", "PUT", "PATCH"]))
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        assert 400 <= answer.status < 500, (answer.status, body)
        assert set(json.loads(answer.read())) == {"error"}
    connection.close()


def test_what_cannot_be_served_is_one_sentence(cli: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    run = CASES["ppo"].write(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sentence = cli("serve", run, "--port", taken.getsockname()[1]).sentence
        assert "cannot be opened" in sentence and "choose another port" in sentence
    assert "rate=-1.0 is out of range" in cli("serve", run, "--rate", "-1").sentence
    assert "there is no run folder" in cli("serve", tmp_path / "none").sentence
    own = Case("ppo", "CartPole-v1", {"network": "elegantrl.nets.networks:linear_layers"}).write(tmp_path / "own")
    assert "add --allow-import" in cli("serve", own).sentence
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert "pip install 'elegantrl[serve]'" in cli("serve", run).sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "td3", "mask", "gru", "nested"])
def test_schemathesis_finds_nothing(name: str, tmp_path: Path) -> None:
    """Requests that fit the schema are answered as it says, and those that do not fit are refused."""
    command = Path(sys.executable).with_name("schemathesis")
    with serving(CASES[name].load()) as client:
        url = f"http://127.0.0.1:{client.port}/openapi.json"
        done = subprocess.run(
            [command, "run", url, "--checks", "all", "--max-examples", "100", "--seed", "1", "--no-color"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout
