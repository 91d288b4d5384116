"""A home with a version of every kind that a layer can start from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from support.engine.judged_memory import memory_of_judged
from support.service.service_fakes import WordEncoder, documents

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.types import Document

PAST = ["river stone", "music head", "lamp"]
JUDGED = [{"d003": 2.0, "d007": 1.0}, {"d003": 1.0, "d011": 1.0}, {"d020": 3.0}]


def build_versions(home: Path) -> dict[str, tuple[str, str]]:
    """Make the home; return collection and version by kind.

    "papers" has 42 documents, newer and deleted ones among its positions; in "long" every one has several
    passages. Metadata: a number `i`, true or false as `even`; `value` is a vector.
    """
    versions = {"untrained": ("papers", "v0"), "passages": ("long", "v0")}
    with SearchEngine(home, encoder=WordEncoder) as engine:
        papers = engine.create("papers")
        papers.ingest(_with_values(documents(40)))
        papers.upsert(_with_values(documents(44))[40:])
        papers.delete(["d005", "d041"])
        for kind, head in _heads(papers).items():
            versions[kind] = ("papers", papers.add_model(head, {}))
        long = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
        beside = documents(12, seed=1)
        both = zip(_with_values(documents(12)), beside, strict=True)
        long.ingest(replace(one, text=f"{one.text} {other.text} {one.text}") for one, other in both)
        versions["passages of two heads"] = ("long", long.add_model(_moved(_two_heads()), {}))
    return versions


def _with_values(plain: list[Document]) -> list[Document]:
    return [
        replace(one, metadata={"i": i, "even": i % 2 == 0}, value=[float(i), 2.0])
        for i, one in enumerate(plain)
    ]


def _heads(papers: Collection) -> dict[str, Head]:
    heads = {"two heads": _two_heads(), "excitation and output": _two_heads()}
    heads["excitation and output"].open_excitation(4)
    heads["excitation and output"].open_output(3)
    for score in ("additive", "general", "gaussian"):
        heads[f"learned {score}"] = Head(32)
        heads[f"learned {score}"].score = new_score(score, 32, 5)
    heads["hops"] = Head(32)
    heads["hidden layer"] = Head(32, heads=2, rank=3, query_side="mlp")
    heads["memory"] = Head(32)
    heads["memory"].memory = memory_of_judged(papers, PAST, JUDGED)
    for kind, head in heads.items():
        _moved(head, 0.5 if kind == "hops" else 0.0)
    return heads


def _two_heads() -> Head:
    return Head(32, heads=2, rank=3)


def _moved(head: Head, hop_strength: float = 0.0) -> Head:
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if not name.startswith("memory."):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        head.hop_strength.fill_(hop_strength)
    return head.eval()
