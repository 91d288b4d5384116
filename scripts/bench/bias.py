#!/usr/bin/env python3
"""Memory of a loss of one's own through the exact softmax over all documents, with a bias for each.

    python scripts/bench/bias.py                                         20,000 documents × 64, 64 queries
    python scripts/bench/bias.py --documents 100000 --dim 384

A layer of a collection attends `over="all"` with a learned bias for each document; the loss is a function
of its context, and its gradient reaches states, bias and head. Beside it the same with an array queries ×
documents × dimension of weighted values, as one may write it: `(weights[..., None] * values).sum(1)`.
*added* is the largest resident memory during forward and backward less that before, in MiB, each way in a
process of its own; Linux only. *array* is the size of one such array. *difference* is that of sums of
context and gradients.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WAYS = {"layer": 'layer, over="all"', "written": "written out"}
NAME = "documents"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--home", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options)))
        return
    with tempfile.TemporaryDirectory() as home:
        index(options, home)
        found = {way: in_child(options, way, home) for way in WAYS}
    array = options.batch * options.documents * options.dim * 4 / 2**20
    titles = " | ".join(f"{title}, added MiB" for title in WAYS.values())
    print(f"| queries × documents × dimension | array MiB | {titles} | difference |")
    print("|" + "---|" * (3 + len(WAYS)))
    size = f"{options.batch} × {options.documents:,} × {options.dim}"
    added = " | ".join(f"{found[way]['added']:.0f}" for way in WAYS)
    ours, theirs = (found[way]["sums"] for way in WAYS)
    apart = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(ours, theirs, strict=True))
    print(f"| {size} | {array:.0f} | {added} | {apart:.0e} |")


def index(options: argparse.Namespace, home: str) -> None:
    """A collection of random vectors."""
    import numpy as np

    from dsearch.engine import SearchEngine
    from dsearch.types import Document

    embeddings = np.random.default_rng(0).normal(size=(options.documents, options.dim))
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    with SearchEngine(home) as engine:
        collection = engine.create(NAME, dimension=options.dim)
        documents = [Document(f"d{n}", f"document {n}") for n in range(options.documents)]
        collection.upsert(documents, embeddings=embeddings)
        collection.refresh()


def in_child(options: argparse.Namespace, way: str, home: str) -> dict[str, Any]:
    """The figures of one way, from a process of its own."""
    sizes = [f"--{name}={getattr(options, name)}" for name in ("documents", "dim", "batch")]
    command = [sys.executable, __file__, "--way", way, "--home", home, *sizes]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Added memory, and sums of context and gradients to compare."""
    import numpy as np
    import torch

    from dsearch.engine import open_layer

    layer = open_layer(options.home, NAME, mode="dense", over="all", candidates=10)
    generator = torch.Generator().manual_seed(1)
    states = torch.nn.functional.normalize(torch.randn(options.batch, options.dim, generator=generator))
    layer.bias = torch.nn.Parameter(0.05 * torch.randn(options.documents, generator=generator))
    keys = torch.as_tensor(layer.snapshot.embeddings(np.arange(options.documents)))

    def step(some: torch.Tensor) -> list[float]:
        some = some.clone().requires_grad_()
        layer.zero_grad()
        if options.way == "layer":
            context = layer(some).context
        else:
            logits = (some @ layer.head.keys(keys).T + layer.bias) / layer.head.temperature
            values = layer.head.values(keys)
            context = (logits.softmax(-1)[..., None] * values).sum(1)
        context.square().sum().backward()
        return [part.detach().abs().sum().item() for part in (context, some.grad, layer.bias.grad)]

    step(states[:1])  # what is loaded once
    Path("/proc/self/clear_refs").write_text("5")  # the largest so far begins anew
    before = memory("VmRSS")
    sums = step(states)
    return {"added": (memory("VmHWM") - before) / 1024, "sums": sums}


def memory(name: str) -> int:
    """A figure of this process in kB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main()
