#!/usr/bin/env python3
"""One query end to end, and indexing, in process: dsearch as installed beside others.

    python scripts/bench/peers.py                      dsearch beside sentence-transformers
    python scripts/bench/peers.py --peers PYTHON       txtai and chromadb too, from another environment
    python scripts/bench/peers.py --short --documents 2000
    python scripts/bench/peers.py --systems "dsearch torch" "dsearch openvino" sentence-transformers

`dsearch` is an engine without any option, after its encoder was exported; `encoder alone` is that encoder
without index and hits, the floor. sentence-transformers is followed by a product of matrices in torch. The
same model, the same entries of Python's documentation, uncut (with --short single lines of them: 30 to 200
characters, where padding and what is around the encoder count), one thread each, every system in a process
of its own. CPU milliseconds of a query (no query twice; ten hits with their texts) and documents a CPU
second, each also as a multiple of the first system's; `overlap` is the share of the ten that
sentence-transformers finds by cosine. Rounds go by turns; medians. What cannot be run, or not in --limit
seconds, is said so, and what was measured is kept. PYTHON has: pip install sentence-transformers txtai
chromadb
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from by_turns import ONE_THREAD, by_turns, medians

INSTALLED = ("dsearch", "dsearch hybrid", "encoder alone")
OURS = (*INSTALLED, "dsearch torch", "dsearch openvino")
THEIRS = ("sentence-transformers", "txtai", "chromadb")
QUERIES = 40
LIMIT_S = 300.0
SHORT = 30, 200  # characters

Search = Callable[[str], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--short", action="store_true", help="lines in place of whole entries")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=sys.executable, help="the Python of an environment with peers")
    parser.add_argument("--systems", nargs="+", choices=(*OURS, *THEIRS), default=[*INSTALLED, *THEIRS])
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one system in one round")
    parser.add_argument("--json", type=Path, help="write the figures here, again after every round")
    parser.add_argument("--one", nargs=3, metavar=("SYSTEM", "DATA", "CACHE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        system, data, cache = options.one
        print(json.dumps(measured(system, json.loads(Path(data).read_text()), Path(cache))))
        return
    figures = compared(options)
    print("| system | query, CPU ms | × the first | documents / CPU s | × the first | overlap |")
    print("|---|---|---|---|---|---|")
    first = next((one for one in figures.values() if "problem" not in one), {})
    for name, one in figures.items():
        if "problem" in one:
            print(f"| {name} | {one['problem']} | | | | |")
            continue
        times = [float(one[part]) / float(first[part]) for part in ("query_ms", "documents_per_s")]
        print(
            f"| {name} | {one['query_ms']:.2f} | {times[0]:.2f} | {one['documents_per_s']:.0f} | "
            f"{times[1]:.2f} | {one['overlap']:.3f} |"
        )


def compared(options: argparse.Namespace) -> dict[str, dict[str, float | str]]:
    import numpy as np

    from dsearch.corpus import python_documents
    from dsearch.encoder import DEFAULT_ENCODER
    from dsearch.encoder.weights import find_weights

    draw = np.random.default_rng(0)
    found = [one.content for one in python_documents()]
    if options.short:
        lines = dict.fromkeys(line.strip() for text in found for line in text.splitlines())
        found = [line for line in lines if SHORT[0] <= len(line) <= SHORT[1]]
    texts = [found[int(one)] for one in draw.permutation(len(found))[: options.documents]]
    words = sorted({word for text in texts for word in text.split() if word.isalpha()})
    queries = [" ".join(draw.choice(words, 6)) for _ in range(QUERIES)]
    environment = {**ONE_THREAD, "TOKENIZERS_PARALLELISM": "false", "ANONYMIZED_TELEMETRY": "False"}
    figures: dict[str, dict[str, float | str]] = {}

    def keep(runs: dict[str, list[dict]], problems: dict[str, str]) -> None:
        figures.update({name: {"problem": told} for name, told in problems.items() if name not in runs})
        truth = runs["sentence-transformers"][0]["hits"] if "sentence-transformers" in runs else []
        for name, each in runs.items():
            pairs = zip(each[0]["hits"], truth, strict=False)
            same = [len(set(mine) & set(theirs)) / 10 for mine, theirs in pairs if mine]
            overlap = statistics.mean(same) if same else float("nan")
            figures[name] = {"overlap": overlap, **medians(each, ("query_ms", "documents_per_s"))}
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1))

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.json"
        encoder = str(find_weights(DEFAULT_ENCODER).folder)
        data.write_text(json.dumps({"texts": texts, "queries": queries, "encoder": encoder}))
        commands = {
            system: [
                sys.executable if system in OURS else options.peers,
                *(__file__, "--one", system, str(data), str(Path(folder) / "cache")),
            ]
            for system in options.systems
        }
        by_turns(commands, options.rounds, options.limit, environment, keep)
    return figures


def measured(system: str, data: dict[str, list[str]], cache: Path) -> dict[str, object]:
    """Figures of one system in this process."""
    texts, queries = data["texts"], data["queries"]
    with tempfile.TemporaryDirectory() as folder:
        build = SYSTEMS[system.split()[0]](system, str(data["encoder"]), cache, Path(folder))
        build(texts[:32])("warm")  # loaded, compiled
        started = time.process_time()
        search = build(texts)
        indexed = time.process_time() - started
        hits = [search(query) for query in queries[:10]]
        took = []
        for query in queries[10:]:
            started = time.process_time()
            hits.append(search(query))
            took.append(time.process_time() - started)
    return {
        "query_ms": statistics.median(took) * 1000,
        "documents_per_s": len(texts) / indexed,
        "hits": hits,
    }


def of_dsearch(system: str, model: str, cache: Path, folder: Path) -> Callable[[list[str]], Search]:
    import os

    from dsearch.threads import set_threads

    set_threads(1)
    from dsearch.encoder import AutomaticEncoder, load_encoder
    from dsearch.engine import PassageOptions, SearchEngine
    from dsearch.types import Document

    mode = "hybrid" if system.endswith("hybrid") else "dense"
    if system in INSTALLED:
        os.environ["DSEARCH_CACHE"] = str(cache)
        engine = SearchEngine(folder / "home")
        if isinstance(engine.encoder, AutomaticEncoder):
            engine.encoder.wait(LIMIT_S)
    else:
        encoder = load_encoder(model, backend=system.split()[1], cache=cache)
        engine = SearchEngine(folder / "home", encoder=lambda: encoder)

    def alone(texts: list[str]) -> Search:
        engine.encoder.encode_documents(texts)

        def search(query: str) -> list[str]:
            engine.encoder.encode_queries([query])
            return []

        return search

    def build(texts: list[str]) -> Search:
        collection = engine.create(f"c{len(texts)}", passages=PassageOptions(none=True))
        collection.ingest(Document(str(number), text) for number, text in enumerate(texts))
        return lambda query: [hit.id for hit in collection.search(query, mode=mode).hits]

    return alone if system == "encoder alone" else build


def of_sentence_transformers(
    system: str, model: str, cache: Path, folder: Path
) -> Callable[[list[str]], Search]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    encoder = SentenceTransformer(model, device="cpu")

    def build(texts: list[str]) -> Search:
        keys = encoder.encode(texts, normalize_embeddings=True, convert_to_tensor=True)

        def search(query: str) -> list[str]:
            state = encoder.encode([query], normalize_embeddings=True, convert_to_tensor=True)
            rows = (keys @ state[0]).topk(10).indices.tolist()
            return [str(row) for row in rows if texts[row]]

        return search

    return build


def of_txtai(system: str, model: str, cache: Path, folder: Path) -> Callable[[list[str]], Search]:
    from txtai import Embeddings

    def build(texts: list[str]) -> Search:
        index = Embeddings(path=model, content=True, gpu=False)
        index.index((str(number), text, None) for number, text in enumerate(texts))
        return lambda query: [str(hit["id"]) for hit in index.search(query, 10)]

    return build


def of_chromadb(system: str, model: str, cache: Path, folder: Path) -> Callable[[list[str]], Search]:
    import chromadb
    from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

    client = chromadb.PersistentClient(str(folder / "chroma"))
    encode = SentenceTransformerEmbeddingFunction(model_name=model)

    def build(texts: list[str]) -> Search:
        made = client.create_collection(
            f"texts{len(texts)}", embedding_function=encode, metadata={"hnsw:space": "cosine"}
        )
        made.add(ids=[str(number) for number in range(len(texts))], documents=texts)
        return lambda query: made.query(query_texts=[query], n_results=10)["ids"][0]

    return build


SYSTEMS = {
    "dsearch": of_dsearch,
    "encoder": of_dsearch,
    "sentence-transformers": of_sentence_transformers,
    "txtai": of_txtai,
    "chromadb": of_chromadb,
}


if __name__ == "__main__":
    main()
