"""Print what each way of ranking computes for the same queries, as JSON; run by test_one_kernel.py.

python -m support.engine.ranking_program FOLDER
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch
from support.cluster_checks import WORDS, sharded
from support.engine.judged_memory import memory_of_judged
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.models.files import save_model
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.search_options import SearchOptions
from dsearch.training.data.examples import Examples
from dsearch.training.ranking import Ranking
from dsearch.types import Document, SearchResult

QUERIES = ["apple cheese", "honey ice", "number7 pear"]
DOCUMENTS = 40


def main(folder: Path) -> None:
    with SearchEngine(folder / "home", encoder=HashingEncoder) as engine:
        food = engine.create("food")
        texts = [f"{WORDS[n % 16]} {WORDS[(n * 3 + 1) % 16]} number{n}" for n in range(DOCUMENTS)]
        food.ingest([Document(f"d{n}", text) for n, text in enumerate(texts)])
        head = copy.deepcopy(food.head("v0"))
        with torch.no_grad():
            head.hop_strength.fill_(0.5)
        judged = [{f"d{n}": 1.0, f"d{n + 9}": 2.0} for n in range(3)]
        memory = memory_of_judged(food, ["apple", "honey", "pear"], judged)
        save_model(food.store, head.remembering(memory).eval(), parent="v0", record={})
        options = SearchOptions(model="v1", limit=DOCUMENTS, candidates=DOCUMENTS)
        print(json.dumps({**of_one_machine(food, options), **of_shards(food, options, folder)}))


def of_one_machine(food: Collection, options: SearchOptions) -> dict[str, list[float]]:
    head, snapshot = food.head("v1"), food.snapshot
    states = HashingEncoder().encode_queries(QUERIES)
    nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)
    examples = Examples(snapshot, QUERIES, states, [nothing] * len(QUERIES), {}, "").remembering()
    of_gate = torch.cat([*Ranking(examples).scores(head, 0.5)])
    layers = {
        "layer": SearchLayer(snapshot, head, candidates=DOCUMENTS),
        "all": SearchLayer(snapshot, head, candidates=DOCUMENTS, over="all"),
    }
    found = {name: layer(torch.as_tensor(states), QUERIES) for name, layer in layers.items()}
    return {
        "search": scores_of(food.answer(QUERIES, options)),
        **{name: of.scores.gather(1, places(of.positions)).flatten().tolist() for name, of in found.items()},
        "gate": of_gate.flatten().tolist(),
    }


def of_shards(food: Collection, options: SearchOptions, folder: Path) -> dict[str, list[float]]:
    with sharded(food, folder / "release", 2) as shards:
        return {"shards": scores_of(shards.search(QUERIES, "v1", options))}


def scores_of(results: list[SearchResult]) -> list[float]:
    """The score of every document for each query, in the order of the documents."""
    by_id = [{hit.id: hit.score for hit in result.hits} for result in results]
    return [scores[f"d{n}"] for scores in by_id for n in range(DOCUMENTS)]


def places(positions: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.argsort(positions, axis=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
