"""The ASGI application of a policy: what each address answers, and the limits on requests.

Axes: N rows, G agents.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError
from ..store.trained import TrainedPolicy
from .forms import BadRequest, Batch, Form, JsonForm, TensorForm
from .graph import PolicyGraph
from .metrics import Metrics
from .openapi import docs_page, info, openapi
from .ports import FIRST, Array

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")
BODY_SECONDS = 10.0
"""Time in which the body of a request must arrive."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server accepts."""

    max_rows: int = 1024
    """Observations of one request."""
    max_bytes: int = 16 << 20
    """Bytes of one request."""
    max_requests: int = 64
    """Requests at once; others are answered with 429."""
    rate: float = 0.0
    """Requests per second; others are answered with 429. 0: no limit."""

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_bytes", "max_requests"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is out of range: it must be >= 1")
        if not 0 <= self.rate < float("inf"):
            raise ConfigError(f"rate={self.rate} is out of range: it must be a number >= 0")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A response."""

    status: int
    kind: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class App:
    """Answers requests for the actions of one policy. It keeps nothing about its clients between requests."""

    def __init__(self, trained: TrainedPolicy, limits: Limits, host: str):
        # Weights that need no gradient: a mode without gradients would take a tenth of a request.
        self.graph = PolicyGraph(trained).eval().requires_grad_(False)
        self.limits, self.host = limits, host
        self.input_names = [port.name for port in self.graph.inputs]
        self.output_names = [port.name for port in (*self.graph.side.outputs, *self.graph.state)]
        forms: list[Form] = [kind(self.graph, limits.max_rows) for kind in (JsonForm, TensorForm)]
        self.forms = {form.kind: form for form in forms}
        self.metrics = Metrics()
        self.bucket = Bucket(limits.rate)
        # One thread: batches take turns, and small requests are answered while one is computed.
        self.batches = ThreadPoolExecutor(1, "batches")
        described = openapi(trained, self.graph, limits.max_rows)
        page = Answer(status=200, kind="text/html; charset=utf-8", body=docs_page(described).encode())
        self.pages = {
            "/health": json_answer(200, {"status": "ok"}),
            "/info": json_answer(200, info(trained, self.graph, limits.__dict__)),
            "/metrics": self._metrics_page(),
            "/openapi.json": json_answer(200, described),
            "/docs": page,
            "/": page,
        }
        self.compute(self._warm_up())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        known = path == "/act" or path in self.pages
        try:
            answer = await self._answer(scope, receive, path)
        except BadRequest as error:
            answer = refusal(error.status, str(error))
        except Exception:
            log.exception("a request to %s failed", path if known else "an unknown address")
            answer = refusal(500, "the server failed; its log has the reason")
        if answer is None:  # the client has gone
            return
        self.metrics.add(path if known else "other", answer.status)
        length = str(len(answer.body)).encode()
        headers = [(b"content-type", answer.kind.encode()), (b"content-length", length), *answer.headers]
        headers.append((b"x-content-type-options", b"nosniff"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})

    async def _answer(self, scope: Scope, receive: Receive, path: str) -> Answer | None:
        headers = dict(scope["headers"])
        self._check_host(headers)
        if path == "/act":
            if scope["method"] != "POST":
                return not_allowed("POST")
            return await self._act(headers, receive)
        if path not in self.pages:
            raise BadRequest(f"there is no such address; there are /act, {', '.join(self.pages)}", 404)
        if scope["method"] not in ("GET", "HEAD"):
            return not_allowed("GET, HEAD")
        return self._metrics_page() if path == "/metrics" else self.pages[path]

    def _metrics_page(self) -> Answer:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Answer(status=200, kind=kind, body=self.metrics.text().encode())

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """A page of another site must not read this server under a name of its own."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
        if self.host in LOCAL and name not in LOCAL:
            raise BadRequest("this name is not served; use 127.0.0.1 or localhost", 403)

    # ---- actions

    async def _act(self, headers: dict[bytes, bytes], receive: Receive) -> Answer | None:
        kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        form = self.forms.get(kind)
        if form is None:
            raise BadRequest(f"the content-type is {kind!r:.60}, expected {' or '.join(self.forms)}", 415)
        if (wait := self.bucket.take()) > 0:
            return busy(f"more than {self.limits.rate:g} requests per second; try again later", wait)
        if self.metrics.in_flight >= self.limits.max_requests:
            return busy(f"more than {self.limits.max_requests} requests at once; try again later", 1)
        self.metrics.in_flight += 1
        try:
            body = await self._body(headers, receive)
            return None if body is None else await self._act_on(form, body)
        finally:
            self.metrics.in_flight -= 1

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The whole body; None if the client has gone."""
        limit, parts, size = self.limits.max_bytes, [], 0
        too_large = BadRequest(f"the request has more than {limit} bytes; split it", 413)
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > limit:
            raise too_large
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise BadRequest(f"the request took longer than {BODY_SECONDS:g} seconds to arrive", 408) from None

    async def _act_on(self, form: Form, body: bytes) -> Answer:
        start = time.perf_counter()
        batch = form.read(body)
        if batch.num == 1:  # a thread would cost more than the action
            answer = self.compute(batch)
        else:
            answer = await asyncio.get_running_loop().run_in_executor(self.batches, self.compute, batch)
        data = form.write(answer, batch)
        self.metrics.rows += batch.num
        self.metrics.add_time(time.perf_counter() - start)
        return Answer(status=200, kind=form.kind, body=data)

    def compute(self, batch: Batch) -> dict[str, Array]:
        """Actions and the next state by the names under which a request has them."""
        outputs = self.graph.forward(*[torch.from_numpy(batch.arrays[name]) for name in self.input_names])
        answer: dict[str, Array] = {name: x.numpy() for name, x in zip(self.output_names, outputs, strict=True)}
        for name, array in answer.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise BadRequest(f"the numbers of this request are too large: {name} is not finite")
        if self.graph.state and not batch.acting.all():  # the state of agents that were left out stays as it is
            for port in self.graph.state:
                acting = batch.acting.reshape(*batch.acting.shape, *(1,) * (len(port.shape) - 1))
                before = np.where(batch.arrays[FIRST].reshape(-1, *(1,) * len(port.shape)), 0, batch.arrays[port.name])
                answer[port.name] = np.where(acting, answer[port.name], before).astype(port.dtype)
        return answer

    def _warm_up(self) -> Batch:
        """A request of zeros: the first call of a network takes longer than others."""
        arrays = {port.name: np.ones((1, *port.shape), port.dtype) for port in self.graph.inputs}
        return Batch(arrays=arrays, num=1, single=True, acting=np.ones((1, len(self.graph.side.sides)), np.bool_))


class Bucket:
    """Lets ``rate`` requests per second pass, and as many at once after a pause."""

    def __init__(self, rate: float):
        self.rate, self.size = rate, max(rate, 1.0)
        self.tokens, self.time = self.size, time.monotonic()

    def take(self) -> float:
        """0 if a request may pass, otherwise the seconds until one may."""
        if self.rate == 0:
            return 0.0
        now = time.monotonic()
        self.tokens, self.time = min(self.size, self.tokens + (now - self.time) * self.rate), now
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return 0.0


def json_answer(status: int, value: Any, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    return Answer(status=status, kind="application/json", body=json.dumps(value).encode(), headers=headers)


def refusal(status: int, sentence: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Answer:
    return json_answer(status, {"error": sentence}, headers)


def not_allowed(methods: str) -> Answer:
    return refusal(405, f"this address is for {methods}", ((b"allow", methods.encode()),))


def busy(sentence: str, seconds: float) -> Answer:
    return refusal(429, sentence, ((b"retry-after", str(max(1, round(seconds))).encode()),))
