"""A served policy acts as the policy of its run does, and bad requests get one sentence."""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from deployed import CASES, Case
from gymnasium import spaces
from safetensors.numpy import load, save
from serving import Served

from elegantrl.deploy.app import Bucket, Limits
from elegantrl.deploy.serve import PolicyServer
from elegantrl.errors import ConfigError
from elegantrl.store.trained import TrainedPolicy

JSON, TENSORS = {"content-type": "application/json"}, {"content-type": "application/x-safetensors"}


class Client:
    """Requests to a server in a thread of this process."""

    def __init__(self, server: PolicyServer, trained: TrainedPolicy):
        self.server, self.trained = server, trained
        self.port = server.socket.getsockname()[1]
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Any = JSON) -> tuple[int, bytes, Any]:
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def act(self, value: Any) -> Any:
        status, body, _ = self.ask("POST", "/act", json.dumps(value).encode())
        assert status == 200, body
        return json.loads(body)

    def refused(self, body: bytes, status: int = 400, headers: Any = JSON) -> str:
        """The sentence of a refusal."""
        found, answer, _ = self.ask("POST", "/act", body, headers)
        assert found == status, answer
        (sentence,) = json.loads(answer).values()
        assert "\n" not in sentence
        return sentence  # type: ignore[no-any-return]


@contextmanager
def serving(trained: TrainedPolicy, **limits: Any) -> Iterator[Client]:
    with PolicyServer(trained, "127.0.0.1", 0, Limits(**limits)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        client = Client(server, trained)
        try:
            yield client
        finally:
            client.connection.close()
            server.stop()
            thread.join(20)
            assert not thread.is_alive()


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


def plain(obs: Any) -> Any:
    return {key: plain(part) for key, part in obs.items()} if isinstance(obs, dict) else np.asarray(obs).tolist()


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


# ---- what is refused

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
        status, body, _ = client.ask("POST", "/act", huge)
        assert status == 200 or "not finite" in json.loads(body)["error"]


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


# ---- limits


def test_large_requests_are_refused() -> None:
    with serving(CASES["ppo"].load(), max_bytes=1000, max_rows=3) as client:
        row = {"obs": [0.0] * 4}
        assert len(client.act([row] * 3)) == 3
        assert "4 rows, and at most 3" in client.refused(json.dumps([row] * 4).encode(), 413)
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
        return {name: plain(tupled(space.sample())) for name, space in shown.items()}
    space: spaces.Space[Any] = trained.units.observation_space
    space.seed(1)
    return tupled(space.sample())


def tupled(obs: Any) -> Any:
    """As JSON."""
    if isinstance(obs, dict):
        return {key: tupled(part) for key, part in obs.items()}
    return [tupled(part) for part in obs] if isinstance(obs, tuple) else np.asarray(obs).tolist()


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


# ---- processes


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(CASES["ppo"].write(tmp_path_factory.mktemp("serve") / "run"), "--port", "0")
    yield server
    assert server.stop(signal.SIGINT) == 0
    assert server.err == ""


def test_a_server_of_a_run_folder(process: Served) -> None:
    assert "serves ppo on CartPole-v1; its page is http://127.0.0.1:" in process.line
    assert process.act({"obs": [0.0] * 4})[0] == 200
    for _ in range(3):
        malformed(process.port, 200)


@pytest.mark.slow
def test_ten_thousand_malformed_requests(tmp_path: Path) -> None:
    server = Served(CASES["ppo"].write(tmp_path / "run"), "--port", "0")
    malformed(server.port, 1000)  # what is loaded at first use
    before = server.memory()
    for seed in range(10):
        malformed(server.port, 1000, seed)
    after = server.memory()
    assert server.act({"obs": [0.0] * 4})[0] == 200
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
def test_schemathesis_finds_nothing(name: str) -> None:
    import schemathesis

    with serving(CASES[name].load()) as client:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{client.port}/openapi.json")

        @schema.parametrize()
        def conforms(case: Any) -> None:
            case.call_and_validate()

        pytest.fail("written below")
