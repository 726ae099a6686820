"""The description of a server: OpenAPI, which follows from the ports of its policy, and a page of it for people."""

from __future__ import annotations

import html
import json
from itertools import pairwise
from typing import Any

import numpy as np

from .. import __version__
from ..store.trained import TrainedPolicy
from .forms import JSON, TENSORS
from .graph import OneSide, PolicyGraph
from .opening import description
from .ports import Array, Port

ERRORS = {
    "400": "The request is not one for this policy.",
    "403": "The request names a machine that is not served.",
    "408": "The body did not arrive in time.",
    "413": "The request has too many bytes.",
    "415": "The content-type is not one of the two.",
    "429": "Too many requests; try again after the seconds in the header Retry-After.",
}

EXAMPLE_LIMIT = 2000
"""Characters of the longest request that is shown; those of pictures would fill the page with zeros."""


def info(trained: TrainedPolicy, graph: PolicyGraph, limits: dict[str, Any]) -> dict[str, Any]:
    """What ``/info`` answers."""
    return description(trained) | {
        "inputs": [port.as_json() for port in graph.inputs],
        "outputs": [port.as_json() for port in graph.outputs],
        "limits": dict(limits),
    }


def openapi(trained: TrainedPolicy, graph: PolicyGraph, max_rows: int) -> dict[str, Any]:
    about = description(trained)
    row, answer = {"$ref": "#/components/schemas/Row"}, {"$ref": "#/components/schemas/Answer"}
    request: dict[str, Any] = row_schema(graph)
    example = example_of(request)
    is_short = len(json.dumps(example)) <= EXAMPLE_LIMIT
    tensors = {"schema": {"type": "string", "format": "binary"}}
    rows = {"type": "array", "items": row, "minItems": 1, "maxItems": max_rows}
    act = {
        "summary": "Actions for observations",
        "description": f"An object gives an object, a list of objects a list. With the content-type {TENSORS} request"
        " and answer hold a tensor [N, ...] in the safetensors format for each input and output that /info lists.",
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"oneOf": [row, rows]}} | ({"example": example} if is_short else {}),
                TENSORS: tensors,
            },
        },
        "responses": {
            "200": {
                "description": "The actions, in the order of the observations.",
                "content": {
                    JSON: {"schema": {"oneOf": [answer, {"type": "array", "items": answer}]}},
                    TENSORS: tensors,
                },
            },
            **{status: refused(text) for status, text in ERRORS.items()},
        },
    }
    pages: dict[str, tuple[str, str, dict[str, Any]]] = {
        "/health": ("Whether the server runs", JSON, {"type": "object", "required": ["status"]}),
        "/info": ("The policy: agent, environment, spaces, inputs, outputs, limits", JSON, {"type": "object"}),
        "/metrics": ("Counts in the text format of Prometheus", "text/plain", {"type": "string"}),
        "/openapi.json": ("This description", JSON, {"type": "object"}),
        "/docs": ("This description as a page", "text/html", {"type": "string"}),
        "/": ("The same page", "text/html", {"type": "string"}),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{about['agent']} on {about['env']}", "version": __version__},
        "paths": {
            "/act": {"post": act},
            **{path: {"get": page(*described)} for path, described in pages.items()},
        },
        "components": {
            "schemas": {
                "Row": request,
                "Answer": answer_schema(graph),
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "string", "description": "One sentence."}},
                },
            }
        },
    }


def refused(text: str) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}


def page(summary: str, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    answers = {"200": {"description": summary, "content": {kind: {"schema": schema}}}, "403": refused(ERRORS["403"])}
    return {"summary": summary, "responses": answers}


# ---- schemas


def row_schema(graph: PolicyGraph) -> dict[str, Any]:
    """A row of a request."""
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "required": [], "properties": {}}
    for side in graph.side.sides:
        for port in side.inputs:
            place(schema, port, mask_schema(port, side) if port == side.mask else port_schema(port))
    for port in graph.state:
        place(schema, port, port_schema(port))
    if graph.policy.team:
        leave_agents_out(schema, graph)
    if graph.state:
        schema["required"] = [key for key in schema["required"] if key != "state"]
        schema["properties"]["state"]["description"] = "The state of the answer before; none begins an episode."
    return schema


def leave_agents_out(schema: dict[str, Any], graph: PolicyGraph) -> None:
    """Agents of a team need not be given; one that is given has its mask, if it needs one."""
    schema["required"] = ["obs"]
    parts = schema["properties"]
    parts["obs"] |= {"required": [], "minProperties": 1, "additionalProperties": False}
    if "mask" in parts:
        parts["mask"] |= {"required": [], "additionalProperties": False}
    masks = [side.mask for side in graph.side.sides if side.mask is not None]
    needed = [port.path[1] for port in masks if port.path[0] == "mask" and port.needed]
    if needed:
        schema["allOf"] = [
            {
                "if": {"properties": {"obs": {"required": [agent]}}},
                "then": {"required": ["mask"], "properties": {"mask": {"required": [agent]}}},
            }
            for agent in needed
        ]


def answer_schema(graph: PolicyGraph) -> dict[str, Any]:
    """A row of an answer."""
    schema: dict[str, Any] = {"type": "object", "required": [], "properties": {}}
    for port in (*graph.side.outputs, *graph.state):
        place(schema, port, port_schema(port))
    if graph.policy.team:
        schema["properties"]["action"]["required"] = []
    return schema


def place(schema: dict[str, Any], port: Port, own: dict[str, Any]) -> None:
    """Put the schema of a port at its path. Objects may have other parts, which are not read."""
    for key, following in pairwise(port.path):
        empty: dict[str, Any] = {"type": "object", "required": [], "properties": {}}
        array: dict[str, Any] = {"type": "array", "prefixItems": [], "minItems": 0}
        schema = child(schema, key, array if isinstance(following, int) else empty, port.needed)
    child(schema, port.path[-1], own, port.needed)


def child(schema: dict[str, Any], key: str | int, new: dict[str, Any], needed: bool) -> dict[str, Any]:
    """The schema of a part: the one that is there, or ``new``."""
    if isinstance(key, int):
        if key == len(schema["prefixItems"]):
            schema["prefixItems"].append(new)
            schema["minItems"] += 1
        return schema["prefixItems"][key]
    if key not in schema["properties"] and needed:
        schema["required"].append(key)
    return schema["properties"].setdefault(key, new)


def port_schema(port: Port) -> dict[str, Any]:
    """Nested arrays of numbers."""
    dtype = np.dtype(port.dtype)
    if dtype.kind == "b":
        return of_shape({"enum": [False, True, 0, 1]}, port.shape)
    if dtype.kind == "f" and port.low is None:
        largest = np.full(port.shape, port.largest)
        return between(-largest, largest, "number")
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    low = np.full(port.shape, limits.min) if port.low is None else np.maximum(port.low, limits.min)
    high = np.full(port.shape, limits.max) if port.high is None else np.minimum(port.high, limits.max)
    return between(low, high, "number" if dtype.kind == "f" else "integer")


def mask_schema(port: Port, side: OneSide) -> dict[str, Any]:
    """Flags with at least one option of each choice."""
    schema, start = port_schema(port), 0
    closed: list[dict[str, Any]] = []
    for size in side.action.choices:
        closed.append({"not": {"prefixItems": [{}] * start + [{"enum": [False, 0]}] * size}})
        start += size
    if len(port.shape) != 1:
        return schema
    return schema | ({"contains": {"enum": [True, 1]}} if len(closed) == 1 else {"allOf": closed})


def of_shape(item: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    for size in reversed(shape):
        item = {"type": "array", "items": item, "minItems": size, "maxItems": size}
    return item


def between(low: Array, high: Array, kind: str) -> dict[str, Any]:
    """Numbers with bounds that may be different for each of them."""
    if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
        return of_shape({"type": kind, "minimum": low.flat[0].item(), "maximum": high.flat[0].item()}, low.shape)
    parts = [between(x, y, kind) for x, y in zip(low, high, strict=True)]
    return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}


def example_of(schema: dict[str, Any]) -> Any:
    """A request that fits: an episode begins, every option is allowed, and numbers are as near to 0 as they may be."""
    if "enum" in schema:
        return True
    if schema["type"] == "object":
        return {key: example_of(part) for key, part in schema["properties"].items() if key != "state"}
    if schema["type"] == "array":
        parts = schema.get("prefixItems") or [schema["items"]] * schema["minItems"]
        return [example_of(part) for part in parts]
    return min(max(0, schema["minimum"]), schema["maximum"])


# ---- a page


def docs_page(described: dict[str, Any]) -> str:
    """One page without a script and without anything from the network."""
    sections = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            sections.append(f"<h2><code>{method.upper()} {path}</code></h2><p>{html.escape(operation['summary'])}.</p>")
            if "description" in operation:
                sections.append(f"<p>{html.escape(operation['description'])}</p>")
            if "example" in (asked := operation.get("requestBody", {"content": {JSON: {}}})["content"][JSON]):
                sections.append(f"<p>For example:</p><pre>{html.escape(json.dumps(asked['example']))}</pre>")
            answers = {status: answer["description"] for status, answer in operation["responses"].items()}
            rows = "".join(
                f"<tr><td>{status}</td><td>{html.escape(text)}</td></tr>" for status, text in answers.items()
            )
            sections.append(f"<table>{rows}</table>")
    for name, schema in described["components"]["schemas"].items():
        sections.append(f"<h2>{name}</h2><pre>{html.escape(json.dumps(schema, indent=1))}</pre>")
    title = html.escape(described["info"]["title"])
    style = "body{font:16px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{background:#eee;overflow:auto}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f'<h1>{title}</h1><p>The same for programs: <a href="/openapi.json">openapi.json</a>.</p>{"".join(sections)}'
    )
