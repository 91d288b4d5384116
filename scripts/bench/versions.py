"""Versions of dsearch by turns, over HTTP and with the real encoder: `service.py --versions FOLDER …`.

A part of the service is judged by a checkout without it beside this one. Each version serves the same
documents from a home of its own, and is asked dense and hybrid. Rounds go to and fro through the versions.
The figures of this version are medians; those of the others are medians of their ratio to this version's in
the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import service
from service import Found, System

THIS = "this"
COMPARED = {"p50_ms": "p50", "p99_ms": "p99", "queries_per_s": "queries/s", "cpu_ms": "server CPU"}
MODES = {"dense": "", "hybrid": ", hybrid"}


def compare(options: argparse.Namespace, texts: list[str], queries: Iterator[str], ends: float) -> None:
    """Start the servers of one back end after the other, measure them and print the table.

    Args:
        options: those of service.py.
        texts: the documents.
        queries: ones that never come again.
        ends: when to stop, by the monotonic clock.
    """
    trees = {THIS: Path(__file__).parents[2], **{tree.name: tree.resolve() for tree in options.versions}}
    found: Found = {}
    for backend in options.backends:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
            started = serve(backend, trees, options.threads, Path(folder), servers)
            for system in started:
                asyncio.run(service.indexed(system, texts))
            for number, measured in service.rounds(started, queries, options, ends):
                print(f"{backend}: {number} rounds", end="\r", file=sys.stderr, flush=True)
                found |= measured
    print(f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores\n")
    print(f"| back end, mode | connections | version | {' | '.join(COMPARED.values())} | rounds |")
    print("|" + "---|" * (4 + len(COMPARED)))
    for backend, (mode, suffix), count in product(options.backends, MODES.items(), options.connections):
        this = found.get((f"dsearch {backend} {THIS}{suffix}", count), [])
        for name in trees:
            several = found.get((f"dsearch {backend} {name}{suffix}", count), [])
            if pairs := list(zip(several, this, strict=False)):
                print(f"| {backend}, {mode} | {count} | {name} | {cells(name, pairs)} | {len(pairs)} |")


def serve(
    backend: str, trees: dict[str, Path], threads: int, folder: Path, servers: ExitStack
) -> list[System]:
    """A server of each version, ready, as a dense and as a hybrid one."""
    from dsearch.encoder import load_encoder

    exported = folder / "exported"
    if backend != "torch":  # exported once, for all
        load_encoder(backend=backend, cache=exported)
    started: list[System] = []
    for name, tree in trees.items():
        if exported.is_dir():
            shutil.copytree(exported, folder / name / ".encoders")
        command = [sys.executable, "-m", "dsearch", "serve", "--backend", backend, "--home"]
        command += [str(folder / name), "--threads", str(threads), "--port"]
        environment = {"PYTHONPATH": str(tree)}
        one = service.serving(f"dsearch {backend} {name}", command, environment, "/readyz")
        dense = servers.enter_context(one)
        started += [dense, System(f"{dense.name}{MODES['hybrid']}", dense.port, dense.process)]
    return started


def cells(name: str, pairs: list[tuple[dict[str, float], dict[str, float]]]) -> str:
    """Figures of this version, or the shares of another one, as cells of the table."""
    texts: list[str] = []
    for figure in COMPARED:
        if name != THIS:
            texts.append(f"× {statistics.median(other[figure] / this[figure] for other, this in pairs):.3f}")
            continue
        middle = statistics.median(this[figure] for this, _ in pairs)
        texts.append(f"{middle:.0f}" if figure == "queries_per_s" else f"{middle:.2f} ms")
    return " | ".join(texts)
