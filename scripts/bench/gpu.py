#!/usr/bin/env python3
"""What a GPU reaches, as shares of what the same card does at its best in the same run.

    python scripts/bench/gpu.py                                 10 M × 384, 1,024 queries; needs CUDA
    python scripts/bench/gpu.py --device cpu                    the same code, small: to see that it runs
    python scripts/bench/gpu.py --only attention --json gpu.json
    python scripts/bench/gpu.py --record gpu.json encoder.json  reports of such runs, as the table below

| part | lines |
|---|---|
| `search` | exact top 100 of the batch, 16 queries and one, over all documents and a tenth; others beside |
| `attention` | `exact_attention` over the whole corpus, forward and backward, by default and written out |
| `encoder` | documents/s of `Encoder` and of plain sentence-transformers in float16, on Python's own manual |
| `training` | one step of a head over all stored documents: listwise loss, retention, Adam |

The peaks are a large square matrix product, in the float type of the line's corpus, and a large copy. Rates
count the products that a line needs, not those it makes, and each byte of the corpus once per pass over it.
A line that does not fit into memory says so. *× others* is how often the search runs in the time of the
lines below, by torch, and by faiss and cuvs where they are installed for the device. Timings are medians
after one round that is not counted.

`results/gpu-h100.json` has the runs of one day.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads

set_threads()

import torch
from records import Record, present_commit, write_record

from dsearch.attention import exact_attention, top_k
from dsearch.attention.retrieval.head import START_TEMPERATURE, Head
from dsearch.encoder.weights import DEFAULT_ENCODER
from dsearch.training.losses.objectives import listwise_cross_entropy, retention

TOP = 100
FEW = 16
ROWS_AT_A_TIME = 1 << 20
POSITIVES = 1
HALF = {"cuda": torch.bfloat16, "cpu": torch.float32}  # a CPU has no fast bfloat16 product to compare with


Search = Callable[[torch.Tensor, int], object]
Prepare = Callable[[torch.Tensor], Search]


@dataclass
class Line:
    """One measured line; the shares are of this run's peaks."""

    name: str
    seconds: float | None = None
    tflops_per_s: float | None = None
    of_product_rate: float | None = None
    of_copy_bandwidth: float | None = None
    documents_per_s: float | None = None
    times: dict[str, float] | None = None


@dataclass
class Peaks:
    """What the device does at its best: products by float type, in FLOP/s, and a copy, in bytes/s."""

    products: dict[torch.dtype, float]
    copy: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda, if there is one")
    parser.add_argument("--documents", type=int, help="default: 10 M, on a CPU 20,000")
    parser.add_argument("--batch", type=int, help="queries; default: 1,024, on a CPU 16")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--texts", type=int, help="documents to encode; default: 8,192, on a CPU 32")
    parser.add_argument("--encoder", default=DEFAULT_ENCODER, help="name or folder of a model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--record", type=Path, nargs="+", help="measure nothing: record these reports")
    options = parser.parse_args()
    if options.record:
        record([json.loads(path.read_text()) for path in options.record])
        return
    if options.device != "cpu" and not torch.cuda.is_available():
        print(
            "no CUDA GPU that torch can see, so nothing was measured. `--device cpu` runs the same code,\n"
            "small; `dsearch doctor` says what torch sees."
        )
        sys.exit(0 if options.device is None else 1)
    options.device = options.device or "cuda"
    cuda = options.device == "cuda"
    options.documents = options.documents or (10_000_000 if cuda else 20_000)
    options.batch = options.batch or (1024 if cuda else 16)
    options.texts = options.texts or (8192 if cuda else 32)

    torch.manual_seed(0)
    peaks = measure_peaks(options)
    facts = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "torch": torch.__version__,
        "documents": options.documents,
        "batch": options.batch,
        "dim": options.dim,
        "product_tflops_per_s": {str(t).removeprefix("torch."): r / 1e12 for t, r in peaks.products.items()},
        "copy_gb_per_s": peaks.copy / 1e9,
    }
    print_facts(facts)
    lines: list[Line] = []
    for part in options.only:
        for line in PARTS[part](options, peaks):
            lines.append(line)
            print_line(line)
        if cuda:
            torch.cuda.empty_cache()
    if options.json:
        report = {"environment": facts, "lines": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def record(reports: list[dict[str, Any]]) -> None:
    """Write the lines of several runs on one card as a table; each run's shares are of its own peaks."""
    facts = reports[0]["environment"]
    card = facts["device"]
    if others := {report["environment"]["device"] for report in reports} - {card}:
        sys.exit(f"reports of several devices: {card}, {', '.join(others)}; record one device at a time")
    share = lambda value: "" if value is None else f"{value:.1%}".replace("%", " %")  # noqa: E731
    figure = lambda value, spec: "" if value is None else f"{value:{spec}}"  # noqa: E731
    rows = [
        [
            line["name"],
            figure(line["seconds"] and line["seconds"] * 1e3, ",.3f"),
            figure(line["tflops_per_s"], ".1f"),
            share(line["of_product_rate"]),
            share(line["of_copy_bandwidth"]),
            figure(line["documents_per_s"], ",.0f"),
            ", ".join(f"{name} {times:.2f}" for name, times in (line["times"] or {}).items()),
        ]
        for report in reports
        for line in report["lines"]
    ]
    rates = ", ".join(f"{rate:,.1f} in {name}" for name, rate in facts["product_tflops_per_s"].items())
    note = (
        f"Attention and head: {facts['batch']:,} queries, {facts['documents']:,} documents; bfloat16, but "
        f'"written out" and "head" float32. Product rate in TFLOP/s: {rates}; copy bandwidth '
        f"{facts['copy_gb_per_s']:,.1f} GB/s; TF32 is compared with the float32 rate. × others: how often "
        "the search runs in the time of another's."
    )
    columns = ["measurement", "ms", "TFLOP/s", "of the product rate", "of the copy bandwidth"]
    columns += ["documents/s", "× others"]
    title = f"Exact search and attention on one GPU, keys of {facts['dim']} numbers"
    command = ["python scripts/bench/gpu.py"]
    machine = f"{card}, torch {facts['torch']}"
    table = Record("GPU", title, command, facts["date"], present_commit(), machine, columns, rows, [note])
    model = next(word for word in card.split() if any(map(str.isdigit, word)))
    write_record(f"gpu-{model.lower()}", table)


def measure_peaks(options: argparse.Namespace) -> Peaks:
    """The best of several: a square product for each float type, and a copy within the device's memory."""
    cuda = options.device == "cuda"
    size = 8192 if cuda else 1024
    products = {}
    for dtype in {HALF[options.device], torch.float32}:
        a = torch.randn(size, size, device=options.device).to(dtype)
        products[dtype] = 2 * size**3 / min(seconds(options, lambda a=a: a @ a))
    source = torch.empty((2 << 30) if cuda else (32 << 20), dtype=torch.uint8, device=options.device)
    target = torch.empty_like(source)
    # A copy reads and writes each byte.
    return Peaks(products, 2 * source.numel() / min(seconds(options, lambda: target.copy_(source))))


def search(options: argparse.Namespace, peaks: Peaks) -> Iterator[Line]:
    """Exact search of the hundred best; the same by torch alone, in the blocks that are fastest."""
    dtype = HALF[options.device]
    every = unit_vectors(options.documents, options, dtype)
    queries = unit_vectors(options.batch, options, dtype)
    others = searches_of_others(options)
    for documents in (options.documents, options.documents // 10):
        keys = every[:documents]
        for batch in sorted({options.batch, min(FEW, options.batch), 1}, reverse=True):
            some = queries[:batch]
            of = f"{batch:,} × {documents:,}"
            ours = timed(
                f"exact search, {of}", partial(top_k, some, keys, TOP), options, peaks, keys, 1, batch
            )
            beside: list[Line] = []
            for name, (words, prepare) in others.items():
                try:
                    run = partial(prepare(keys), some, TOP)
                    line = timed(f"{words}, {of}", run, options, peaks, keys, 1, batch)
                except (RuntimeError, TypeError) as error:  # of the other library
                    line = Line(f"{words}, {of}: {str(error)[:80]}")
                beside.append(line)
                if ours.seconds is not None and line.seconds is not None:
                    ours.times = {**(ours.times or {}), name: line.seconds / ours.seconds}
            yield from (ours, *beside)


def searches_of_others(options: argparse.Namespace) -> dict[str, tuple[str, Prepare]]:
    """Exact searches to compare with: torch's, and those of libraries that are installed for the device.

    Each takes the keys and gives a search of queries. FAISS is asked in the float type of the line, on a CPU
    in float32; cuVS in float16, since it has no bfloat16.
    """
    found: dict[str, tuple[str, Prepare]] = {
        "torch": (
            "torch: product, top k",
            lambda keys: lambda queries, k: product_and_top_k(queries, keys, k),
        )
    }
    import faiss

    if options.device == "cpu":
        inner = faiss.METRIC_INNER_PRODUCT
        found["faiss"] = (
            "faiss: knn",
            lambda keys: lambda queries, k: faiss.knn(queries.numpy(), keys.numpy(), k, metric=inner),
        )
        return found
    if hasattr(faiss, "StandardGpuResources"):
        found["faiss"] = ("faiss: knn_gpu", faiss_on_a_gpu)
    if importlib.util.find_spec("cuvs") is not None:
        found["cuvs"] = ("cuvs: brute force, float16", cuvs_on_a_gpu)
    return found


def faiss_on_a_gpu(keys: torch.Tensor) -> Search:
    """FAISS over keys that lie on the GPU, without an index and without a copy."""
    import faiss
    import faiss.contrib.torch_utils  # lets knn_gpu take tensors

    resources = faiss.StandardGpuResources()
    metric = faiss.METRIC_INNER_PRODUCT
    return lambda queries, k: faiss.knn_gpu(resources, queries, keys, k, metric=metric)


def cuvs_on_a_gpu(keys: torch.Tensor) -> Search:
    """cuVS's brute force over a copy of the keys in float16."""
    from cuvs.neighbors import brute_force

    index = brute_force.build(keys.half(), metric="inner_product")
    return lambda queries, k: brute_force.search(index, queries.half(), k)


def product_and_top_k(queries: torch.Tensor, keys: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What anybody would write: scores in float32, block by block, and the best of each block's best."""
    block = max((1 << 26) // len(queries), 65_536) if queries.is_cuda else 8192
    halves = {"out_dtype": torch.float32} if queries.is_cuda else {}
    found = []
    for start in range(0, len(keys), block):
        scores = torch.mm(queries, keys[start : start + block].T, **halves)
        best, rows = scores.topk(min(k, scores.shape[1]), dim=1)
        found.append((best, rows + start))
    scores, rows = (torch.cat(column, 1) for column in zip(*found, strict=True))
    best, places = scores.topk(min(k, scores.shape[1]), dim=1)
    return best, rows.gather(1, places)


def attention(options: argparse.Namespace, peaks: Peaks) -> Iterator[Line]:
    """Exact attention over the whole corpus: 2 products, with backward 5, for the keys' gradient 7."""
    keys = unit_vectors(options.documents, options, HALF[options.device])
    queries = unit_vectors(options.batch, options, HALF[options.device])

    def forward(queries: torch.Tensor, keys: torch.Tensor, fused: bool | None):
        return exact_attention(queries, keys, temperature=START_TEMPERATURE, fused=fused)

    def both(queries: torch.Tensor, keys: torch.Tensor, fused: bool | None) -> None:
        keys.grad = None
        forward(queries, keys, fused).context.sum().backward()

    leaf = queries.clone().requires_grad_()
    for fused, name in ((None, "attention"), (False, "attention written out")):
        with torch.no_grad():
            run = lambda fused=fused: forward(queries, keys, fused)  # noqa: E731
            yield timed(name, run, options, peaks, keys, products=2)
        run = lambda fused=fused: both(leaf, keys, fused)  # noqa: E731
        yield timed(f"{name} + backward", run, options, peaks, keys, products=5, passes=2)
    learning = keys.detach().requires_grad_()
    run = lambda: both(leaf, learning, None)  # noqa: E731
    yield timed("attention + backward to the keys", run, options, peaks, keys, products=7, passes=3)


def encoder(options: argparse.Namespace, peaks: Peaks) -> Iterator[Line]:
    """Documents per second, one pass over the same texts each."""
    from dsearch.corpus import python_corpus
    from dsearch.encoder import Encoder

    texts = [document.text for document in python_corpus().documents]
    texts = (texts * -(-options.texts // len(texts)))[: options.texts]
    batch_size = 256 if options.device == "cuda" else 32
    loaded = Encoder.load(options.encoder, device=options.device, batch_size=batch_size)
    rates: list[tuple[str, Callable[[], object]]] = [
        ("encoder, float32", lambda: loaded.encode_documents(texts)),
    ]
    if options.device == "cuda":
        half = Encoder.load(options.encoder, device=options.device, dtype="bfloat16", batch_size=batch_size)
        rates.append(("encoder, bfloat16", lambda: half.encode_documents(texts)))
    plain = Encoder.load(options.encoder, device=options.device).model
    name = "sentence-transformers, float32"
    if options.device == "cuda":
        plain, name = plain.half(), "sentence-transformers, float16"
    rates.append((name, lambda: plain.encode(texts, batch_size=batch_size, show_progress_bar=False)))
    for name, encode in rates:
        took_s = statistics.median(seconds(options, encode, repeats=min(options.repeats, 3)))
        yield Line(name, seconds=took_s, documents_per_s=len(texts) / took_s)


def training(options: argparse.Namespace, peaks: Peaks) -> Iterator[Line]:
    """A step of the trainer's loss over every stored document, in float32 as the trainer has them.

    Then with torch.set_float32_matmul_precision("high"), which is the user's to choose: products of numbers
    rounded to 10 bits (TF32). The shares are of the float32 rate for both.
    """
    corpus = unit_vectors(options.documents, options, torch.float32)
    head = Head(options.dim).to(options.device)
    optimiser = torch.optim.Adam(head.parameters(), lr=1e-4)
    relevant = torch.randint(options.documents, (options.batch, POSITIVES), device=options.device)
    states = torch.nn.functional.normalize(
        corpus[relevant[:, 0]] + 0.05 * torch.randn(options.batch, options.dim, device=options.device)
    )
    target = torch.full((options.batch, POSITIVES), 1 / POSITIVES, device=options.device)
    kept = corpus[:64]

    def step() -> None:
        optimiser.zero_grad()
        loss = listwise_cross_entropy(head, states, None, corpus, relevant, target)
        (loss + retention(head, kept, corpus)).backward()
        optimiser.step()

    # Log Z and its gradient are 2 products for each query, for retention twice.
    products = 2 + len(kept) / options.batch * 4
    yield timed("head, one step", step, options, peaks, corpus, products, passes=6)
    if options.device == "cuda":
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        yield timed("head, one step, TF32", step, options, peaks, corpus, products, passes=6)
        torch.set_float32_matmul_precision(before)


PARTS: dict[str, Callable[[argparse.Namespace, Peaks], Iterator[Line]]] = {
    "search": search,
    "attention": attention,
    "encoder": encoder,
    "training": training,
}


def timed(
    name: str,
    run: Callable[[], object],
    options: argparse.Namespace,
    peaks: Peaks,
    keys: torch.Tensor,
    products: float,
    batch: int | None = None,
    passes: int = 1,
) -> Line:
    """A line over the corpus: `products` of [batch, dim] × [dim, documents], `passes` that read the keys."""
    try:
        took_s = statistics.median(seconds(options, run))
    except torch.OutOfMemoryError:
        return Line(f"{name}: out of memory")
    flops = 2 * products * (batch or options.batch) * keys.numel() / took_s
    read = passes * keys.numel() * keys.element_size() / took_s
    return Line(
        name,
        seconds=took_s,
        tflops_per_s=flops / 1e12,
        of_product_rate=flops / peaks.products[keys.dtype],
        of_copy_bandwidth=read / peaks.copy,
        documents_per_s=len(keys) / took_s,
    )


def seconds(
    options: argparse.Namespace, run: Callable[[], object], repeats: int | None = None
) -> list[float]:
    """Seconds of each round but the first, which warms caches."""
    took_s = []
    for _ in range((repeats or options.repeats) + 1):
        start = time.perf_counter()
        run()
        if options.device == "cuda":
            torch.cuda.synchronize()
        took_s.append(time.perf_counter() - start)
    return took_s[1:]


def unit_vectors(rows: int, options: argparse.Namespace, dtype: torch.dtype) -> torch.Tensor:
    """Random directions, made part by part so that no second copy is needed."""
    vectors = torch.empty(rows, options.dim, dtype=dtype, device=options.device)
    for part in vectors.split(ROWS_AT_A_TIME):
        part.copy_(torch.nn.functional.normalize(torch.randn(part.shape, device=options.device)))
    return vectors


def print_facts(facts: dict) -> None:
    rates = ", ".join(f"{rate:.3g} TFLOP/s {dtype}" for dtype, rate in facts["product_tflops_per_s"].items())
    print(
        f"{facts['date']}, {facts['device']}, torch {facts['torch']}: {facts['documents']:,} documents × "
        f"{facts['dim']}, {facts['batch']} queries\n"
        f"peaks of this run: {rates}; copy {facts['copy_gb_per_s']:.3g} GB/s\n"
    )
    print("| | seconds | TFLOP/s | of product rate | corpus read, of copy rate | documents/s | × others |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)


def print_line(line: Line) -> None:
    cells = [
        "" if line.seconds is None else f"{line.seconds:.4g}",
        "" if line.tflops_per_s is None else f"{line.tflops_per_s:.3g}",
        "" if line.of_product_rate is None else f"{line.of_product_rate:.1%}",
        "" if line.of_copy_bandwidth is None else f"{line.of_copy_bandwidth:.1%}",
        "" if line.documents_per_s is None else f"{line.documents_per_s:,.0f}",
        "" if line.times is None else ", ".join(f"{times:.2f}" for times in line.times.values()),
    ]
    print(f"| {line.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
