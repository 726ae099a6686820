"""Matrix products by oneDNN on processors for which MKL has slow kernels.

Torch calls MKL for products of floats. On processors of AMD, MKL uses vectors of 256 bits; oneDNN, which torch contains
for convolutions, uses those of 512 bits. From Zen 5 on (family 26) these are computed at once, and a product of 256x256
matrices takes 140 us instead of 290. Zen 4 splits them into halves and gains nothing. Small products stay with MKL,
because a call of oneDNN costs about 10 us.
Axes: B rows, I inputs, K outputs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

ZEN_5 = 26
"""The family number of the first AMD processors that compute vectors of 512 bits at once."""
MIN_SIZE = 2**20
"""The smallest product B * I * K for which oneDNN is faster."""


@cache
def are_faster() -> bool:
    """Whether large products are left to oneDNN: a property of the machine, so that equal runs use equal kernels."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and is_zen_5(cpu_facts())
    )


def is_zen_5(facts: dict[str, str]) -> bool:
    """Whether facts of /proc/cpuinfo belong to an AMD processor of Zen 5 or newer."""
    return facts.get("vendor_id") == "AuthenticAMD" and int(facts.get("cpu family", 0)) >= ZEN_5


def cpu_facts() -> dict[str, str]:
    """The facts of the first processor in /proc/cpuinfo; empty on systems other than Linux."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def mm(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """``torch.mm`` for matrices on a CPU that need no gradient."""
    if a.shape[0] * b.numel() < MIN_SIZE or not are_faster():
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)
    product = onednn(a, b.t())
    return product if out is None else out.copy_(product)


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
