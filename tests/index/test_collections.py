"""Keyword search on real collections: figures that a change of tokenizer or formula must not lower."""

from __future__ import annotations

import json

import pytest
from support.paths import REAL_DATA

from dsearch.evaluation import evaluate, mean_values, read_pairs, read_qrels
from dsearch.index import KeywordIndex

DATA = REAL_DATA


@pytest.mark.skipif(not DATA.is_dir(), reason="the collections are not beside this checkout")
@pytest.mark.parametrize(("name", "least"), [("scifact", 0.680), ("cranfield", 0.410)])
def test_keyword_search_reaches_its_figure(name: str, least: float) -> None:
    folder = DATA / name
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").splitlines()]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").splitlines()]
    index = KeywordIndex.build(f"{document['title']} {document['text']}" for document in corpus)
    scores, positions = index.search([query["text"] for query in queries], 20)
    run = {
        query["_id"]: [(corpus[p]["_id"], float(s)) for s, p in zip(*row, strict=True) if p >= 0]
        for query, *row in zip(queries, scores, positions, strict=True)
    }
    pairs = folder / "source_docs.tsv"
    exclude = read_pairs(pairs) if pairs.exists() else None
    values = evaluate(run, read_qrels(folder / "qrels" / "test.tsv"), ["nDCG@10"], exclude)
    assert mean_values(values)["nDCG@10"] >= least
