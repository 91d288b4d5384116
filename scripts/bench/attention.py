#!/usr/bin/env python3
"""Exact attention over a whole corpus: time and memory, against what one would write without it.

    python scripts/bench/attention.py                                   1 M × 384, 64 queries, CPU
    python scripts/bench/attention.py --documents 100000 --json out.json
    python scripts/bench/attention.py --device cuda                     10 M × 384 bfloat16, 1,024 queries

Every line of the table is measured in a process of its own, so that its peak memory is its own. *Memory* is
the peak above what the process held once the corpus was in place (for FAISS: once its index was).

| line | does |
|---|---|
| blocked | `exact_attention`, forward, written out |
| blocked + backward | and the gradient with respect to the queries |
| fused | `exact_attention`, forward, by torch's fused operators |
| fused + backward | and the gradient with respect to the queries, by them as well |
| naive | softmax(QKᵀ/t)V with the whole matrix |
| naive + backward | and the gradient with respect to the queries |
| torch top 10 | `top_k_attention`: blocked exact search, softmax over the ten, pool |
| FAISS Flat top 10 | `IndexFlatIP.search`, gather, softmax over the ten, pool |

By itself `exact_attention` takes the fused forward here, and on a CPU the backward that is written out.
*Of product peak* is the rate at which the products that a line needs were done, over that of a large matrix
product in the same run, in the type of the corpus on CUDA and in float32 on a CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TEMPERATURE = 0.05
TOP = 10
BLOCK = 65_536
# Passes of [batch, dim] × [dim, documents] that a line needs. A backward takes two more than its forward, for
# the gradient of the queries; the blocked one a third, to recompute the logits that it did not keep. Fused
# operators do two more, the gradients of keys and values, which nobody asked for and which do not count.
PRODUCTS = {
    "blocked": 2,
    "blocked + backward": 5,
    "fused": 2,
    "fused + backward": 5,
    "naive": 2,
    "naive + backward": 4,
    "torch top 10": 1,
    "FAISS Flat top 10": 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, help="default: 1 M, on CUDA 10 M")
    parser.add_argument("--batch", type=int, help="queries; default: 64, on CUDA 1,024")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--block-size", type=int, help="default: 8,192, on CUDA 65,536")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], help="of the corpus; default: float32, on CUDA bfloat16"
    )
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    parser.add_argument("--repeats", type=int, default=3, help="timings are medians of so many")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="+", choices=list(LINES), help="lines to measure; default all")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--measure", choices=list(LINES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    fill_in(options)
    if options.device == "cuda" and not cuda_is_there():
        print(
            "no CUDA GPU that torch can see: nothing measured; leave out --device cuda to measure on the CPU"
        )
        sys.exit(1)
    if options.measure:
        print(json.dumps(measure(options)))
        return

    lines = options.only or [name for name in LINES if options.device == "cpu" or "FAISS" not in name]
    results = []
    for name in lines:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--measure", name]
        results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    report = {"environment": environment(options), "results": results}
    print_table(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def fill_in(options: argparse.Namespace) -> None:
    """The defaults that depend on the device."""
    cuda = options.device == "cuda"
    options.documents = options.documents or (10_000_000 if cuda else 1_000_000)
    options.batch = options.batch or (1024 if cuda else 64)
    options.block_size = options.block_size or (65_536 if cuda else 8192)
    options.dtype = options.dtype or ("bfloat16" if cuda else "float32")


def cuda_is_there() -> bool:
    import torch

    return torch.cuda.is_available()


def measure(options: argparse.Namespace) -> dict[str, float | str | None]:
    """One line of the table: median seconds and peak bytes; None where memory did not suffice."""
    import torch

    try:
        return measured(options)
    except torch.OutOfMemoryError:
        return {"name": options.measure, "seconds": None, "memory_bytes": None, "tflops_per_s": None}


def measured(options: argparse.Namespace) -> dict[str, float | str | None]:
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    queries = torch.nn.functional.normalize(torch.randn(options.batch, options.dim)).to(options.device)
    run = LINES[options.measure](options, queries)
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = peak_memory_bytes(options)
    took_s = []
    for repeat in range(options.repeats + 1):
        start = time.perf_counter()
        run()
        if options.device == "cuda":
            torch.cuda.synchronize()
        if repeat:  # the first one warms caches and threads
            took_s.append(time.perf_counter() - start)
    seconds = statistics.median(took_s)
    products = PRODUCTS[options.measure]
    flops = 2 * products * options.batch * options.documents * options.dim
    return {
        "name": options.measure,
        "seconds": seconds,
        "memory_bytes": peak_memory_bytes(options) - before,
        "tflops_per_s": flops / seconds / 1e12,
    }


def corpus(options: argparse.Namespace):
    """Unit vectors, made block by block in place, so that making them leaves no peak behind."""
    import torch

    keys = torch.empty(
        options.documents, options.dim, dtype=getattr(torch, options.dtype), device=options.device
    )
    for block in keys.split(BLOCK):
        unit_vectors(block)
    return keys


def unit_vectors(block):
    block.normal_()
    block /= block.norm(dim=1, keepdim=True)
    return block


def blocked(options: argparse.Namespace, queries, fused: bool = False) -> Callable[[], object]:
    from dsearch.attention import exact_attention

    keys = corpus(options)
    queries = queries.to(keys.dtype).detach().requires_grad_(queries.requires_grad)
    return lambda: exact_attention(
        queries, keys, temperature=TEMPERATURE, block_size=options.block_size, fused=fused
    )


def blocked_backward(options: argparse.Namespace, queries, fused: bool = False) -> Callable[[], object]:
    forward = blocked(options, queries.requires_grad_(), fused)
    return lambda: forward().context.sum().backward()


def fused_forward(options: argparse.Namespace, queries) -> Callable[[], object]:
    return blocked(options, queries, fused=True)


def fused_backward(options: argparse.Namespace, queries) -> Callable[[], object]:
    return blocked_backward(options, queries, fused=True)


def naive(options: argparse.Namespace, queries) -> Callable[[], object]:
    keys = corpus(options)
    queries = queries.to(keys.dtype).detach().requires_grad_(queries.requires_grad)
    return lambda: (queries @ keys.T / TEMPERATURE).softmax(-1) @ keys


def naive_backward(options: argparse.Namespace, queries) -> Callable[[], object]:
    forward = naive(options, queries.requires_grad_())
    return lambda: forward().sum().backward()


def torch_top(options: argparse.Namespace, queries) -> Callable[[], object]:
    from dsearch.attention import top_k_attention

    keys = corpus(options)
    queries = queries.to(keys.dtype)
    return lambda: top_k_attention(
        queries, keys, k=TOP, temperature=TEMPERATURE, block_size=options.block_size
    )


def faiss_top(options: argparse.Namespace, queries) -> Callable[[], object]:
    import faiss
    import torch

    if options.threads:
        faiss.omp_set_num_threads(options.threads)
    index = faiss.IndexFlatIP(options.dim)
    for start in range(0, options.documents, BLOCK):  # never the corpus beside the index
        rows = min(BLOCK, options.documents - start)
        index.add(unit_vectors(torch.empty(rows, options.dim)).numpy())

    def run():
        scores, rows = index.search(queries.numpy(), TOP)
        values = torch.from_numpy(index.reconstruct_batch(rows.ravel())).view(*rows.shape, -1)
        weights = (torch.from_numpy(scores) / TEMPERATURE).softmax(-1)
        return (weights.unsqueeze(1) @ values).squeeze(1)

    return run


LINES: dict[str, Callable[..., Callable[[], object]]] = {
    "blocked": blocked,
    "blocked + backward": blocked_backward,
    "fused": fused_forward,
    "fused + backward": fused_backward,
    "naive": naive,
    "naive + backward": naive_backward,
    "torch top 10": torch_top,
    "FAISS Flat top 10": faiss_top,
}


def peak_memory_bytes(options: argparse.Namespace) -> int:
    """High-water mark of this process: of the card on CUDA, resident memory on CPU."""
    if options.device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux


def environment(options: argparse.Namespace) -> dict[str, object]:
    """What the figures depend on; on CUDA with the card's measured matrix-product peak."""
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    facts: dict[str, object] = {
        "documents": options.documents,
        "batch": options.batch,
        "dim": options.dim,
        "block_size": options.block_size,
        "dtype": options.dtype,
        "corpus_bytes": options.documents * options.dim * (4 if options.dtype == "float32" else 2),
        "device": options.device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if options.device == "cuda":
        facts["card"] = torch.cuda.get_device_name()
    facts["peak_tflops_per_s"] = product_peak(options)
    return facts


def product_peak(options: argparse.Namespace) -> float:
    """Best of several square matrix products on this device, in TFLOP/s: what the lines are a share of."""
    import torch

    cuda = options.device == "cuda"
    size = 8192 if cuda else 2048
    a = torch.randn(size, size, dtype=getattr(torch, options.dtype) if cuda else torch.float32).to(
        options.device
    )
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e12


def print_table(report: dict) -> None:
    facts = report["environment"]
    print(
        f"\n{facts['documents']:,} documents × {facts['dim']}, {facts['batch']} queries, {facts['dtype']} "
        f"({facts['corpus_bytes'] / 2**20:,.0f} MiB), block {facts['block_size']}, "
        f"{facts.get('card', facts['device'])}, {facts['threads']} threads, torch {facts['torch']}\n"
    )
    print("| | seconds | memory, MiB | TFLOP/s | of product peak |\n|---|---:|---:|---:|---:|")
    for line in report["results"]:
        if line["seconds"] is None:
            print(f"| {line['name']} | out of memory | | | |")
            continue
        share = line["tflops_per_s"] / facts["peak_tflops_per_s"]
        print(
            f"| {line['name']} | {line['seconds']:.3f} | {line['memory_bytes'] / 2**20:,.0f} "
            f"| {line['tflops_per_s']:.3f} | {share:.0%} |"
        )


if __name__ == "__main__":
    main()
