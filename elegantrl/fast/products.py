"""Matrix products by oneDNN on processors for which MKL has slow kernels.

Torch calls MKL for products of floats. On processors of AMD with AVX-512, MKL uses half of the width of their vector
units; oneDNN, which torch contains for convolutions, uses all of it. A product of 256x256 matrices takes 140 us instead
of 290. Small products stay with MKL, because a call of oneDNN costs about 10 us.
Axes: B rows, I inputs, K outputs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

MIN_SIZE = 2**20
"""The smallest product B * I * K for which oneDNN is faster."""


@cache
def are_faster() -> bool:
    """Whether large products are left to oneDNN: a property of the machine, so that equal runs use equal kernels."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and vendor() == "AuthenticAMD"
    )


def vendor() -> str:
    """The maker of the processor as Linux names it; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("vendor_id")), "")


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
