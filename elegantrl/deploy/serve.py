"""Serves a trained policy by HTTP, to programs of this machine unless told otherwise."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import ConfigError
from ..store.trained import TrainedPolicy
from .app import App, Limits
from .opening import Runs, description, open_policy

IDLE_SECONDS = 60
"""Time after which a connection without requests is closed; a client may step its environment meanwhile."""
SHUTDOWN_SECONDS = 5
"""Time for requests that are being answered when the server ends."""


def serve(
    run: Runs,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    limits: Limits = Limits(),  # noqa: B008  frozen
    weights: Sequence[float] | None = None,
    allow_import: bool = False,
) -> None:
    """Serve the policy of a run, or the average of several, until Ctrl-C or SIGTERM."""
    with PolicyServer(open_policy(run, weights, allow_import), host, port, limits) as server:
        print(f"{server.url} serves {server.title}; its page is {server.url}docs; stop with Ctrl-C", flush=True)
        server.run()


class PolicyServer:
    """One policy behind one address, which is open from the beginning."""

    def __init__(self, trained: TrainedPolicy, host: str, port: int, limits: Limits):
        try:
            import uvicorn
        except ImportError as error:
            raise ConfigError(f"serving a policy needs {error.name}: pip install 'elegantrl[serve]'") from None
        self.app = App(trained, limits, host)
        about = description(trained)
        self.title = f"{about['agent']} on {about['env']}"
        self.host, self.socket = host, open_socket(host, port)
        config = uvicorn.Config(
            self.app,
            log_config=None,
            log_level="critical",  # a client must not fill the log with its mistakes
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )

        class Server(uvicorn.Server):
            """Without handlers that send a signal again after the server has ended by it."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        self._server = Server(config)

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.socket.getsockname()[1]}/"

    def run(self) -> None:
        """Answer requests until ``stop`` or a signal; requests that have begun are answered."""
        handlers = {}
        with contextlib.suppress(ValueError):  # not the main thread: signals are not ours
            for number in (signal.SIGINT, signal.SIGTERM):
                handlers[number] = signal.signal(number, lambda *_: self.stop())
        try:
            self._server.run(sockets=[self.socket])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        self._server.should_exit = True

    def __enter__(self) -> PolicyServer:
        return self

    def __exit__(self, *error: Any) -> None:
        self.socket.close()
        self.app.batches.shutdown(wait=False, cancel_futures=True)


def open_socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--host {host} --port {port} cannot be opened ({error}); choose another port, or 0 for any free one"
        ) from None
