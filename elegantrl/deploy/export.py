"""A trained policy as one file for other programs, checked against the policy before it is written."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from ..errors import ConfigError, ElegantRLError, format_error
from ..store.files import write_atomic
from ..store.trained import TrainedPolicy
from .check import Agreement, Run, compare
from .graph import PolicyGraph
from .opening import Runs, description, open_policy
from .ports import Array

Format = Literal["onnx", "torch"]
FILES: dict[Format, str] = {"onnx": "policy.onnx", "torch": "policy.pt2"}
"""The default name of a file in the current folder."""
METADATA = "elegantrl.json"
"""What the file of the format torch holds beside the program."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file that was written."""

    path: Path
    num_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    agreement: Agreement


def export(
    run: Runs,
    *,
    format: Format = "onnx",
    out: str | Path | None = None,
    weights: Sequence[float] | None = None,
    allow_import: bool = False,
) -> Exported:
    """Write the policy of a run, or the average of several, to the file ``out``.

    Raw observations go in and actions for ``env.step`` come out; the first axis is the number of observations, which
    may be any. The file is written only if it acts as ``TrainedPolicy.act`` does on 1,000 observations.
    """
    if format not in FILES:
        raise ConfigError(f"format={format!r:.40} is not one of {', '.join(FILES)}")
    path = Path(FILES[format] if out is None else out)
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder; name a file in it")
    trained = open_policy(run, weights, allow_import)
    graph = PolicyGraph(trained).eval()
    data, exported_run = make_file(trained, graph, format)
    agreement = compare(trained, graph, exported_run)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)
    names = [tuple(port.name for port in ports) for ports in (graph.inputs, graph.outputs)]
    return Exported(path=path, num_bytes=len(data), inputs=names[0], outputs=names[1], agreement=agreement)


def make_file(trained: TrainedPolicy, graph: PolicyGraph, format: Format) -> tuple[bytes, Run]:
    """The bytes of a file, and what they compute."""
    about = description(trained) | {
        "inputs": [port.as_json() for port in graph.inputs],
        "outputs": [port.as_json() for port in graph.outputs],
    }
    make: dict[Format, Callable[..., tuple[bytes, Run]]] = {"onnx": _onnx_file, "torch": _torch_file}
    try:
        with quiet():
            return make[format](trace(graph), graph, about)
    except ElegantRLError:
        raise
    except Exception as error:  # a network of the user's may do anything, and so may its tracing
        raise ConfigError(
            f"the policy cannot be exported as {format}: {format_error(error):.300}; its network must compute the same"
            f" operations for all observations"
        ) from error


def trace(graph: PolicyGraph) -> ExportedProgram:
    """The graph as a program whose first axes may have any size of at least 1."""
    examples = tuple(
        torch.zeros(2, *port.shape, dtype=getattr(torch, port.dtype), device="cpu") for port in graph.inputs
    )
    shapes = {"tensors": tuple({0: Dim("N", min=1)} for _ in examples)}
    with torch.no_grad():
        return torch.export.export(graph, examples, dynamic_shapes=shapes)


def _torch_file(program: ExportedProgram, graph: PolicyGraph, about: dict[str, Any]) -> tuple[bytes, Run]:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA: json.dumps(about)})
    module = program.module()

    def run(arrays: list[Array]) -> list[Array]:
        outputs: tuple[Tensor, ...] = module(*map(torch.as_tensor, arrays))
        return [x.numpy() for x in outputs]

    return buffer.getvalue(), run


def _onnx_file(program: ExportedProgram, graph: PolicyGraph, about: dict[str, Any]) -> tuple[bytes, Run]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  the exporter of torch needs it
    except ImportError as error:
        raise ConfigError(f"the format onnx needs {error.name}: pip install 'elegantrl[export]'") from None
    names = [port.name for port in graph.outputs]
    made = torch.onnx.export(
        program, input_names=[port.name for port in graph.inputs], output_names=names, dynamo=True, verbose=False
    )
    assert made is not None
    model = made.model_proto
    for name, value in about.items():
        model.metadata_props.add(key=name, value=value if isinstance(value, str) else json.dumps(value))
    data: bytes = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(arrays: list[Array]) -> list[Array]:
        outputs: list[Array] = session.run(names, {port.name: x for port, x in zip(graph.inputs, arrays, strict=True)})
        return outputs

    return data, run


@contextmanager
def quiet() -> Iterator[None]:
    """Without the messages of the exporters, which are about their own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
