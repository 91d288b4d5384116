"""Search parameters of an approximate index, tuned again when another head queries it.

A new head changes the queries. Parameters (nprobe, ef_search, …) that found the ten nearest keys for the old
head's queries may find fewer for the new head's. The new parameters and their measurements are stored beside
the generations in `tuned.json`. The file is derived data: if it is missing or unreadable, the parameters of
the build apply.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from dsearch.engine.indexing.leases import open_live
from dsearch.engine.options import KeyOptions
from dsearch.errors import InvalidRequest
from dsearch.index import Generation
from dsearch.index.dense.tuning import exact_neighbours, recall, tuned
from dsearch.index.durable import replace_file
from dsearch.processes import Report
from dsearch.store import Store

FILE_NAME = "tuned.json"


@dataclass(frozen=True, slots=True)
class TunedKeys:
    """Recall of a generation's index for a model's queries, and the parameters that reach it.

    Attributes:
        generation: number of the generation.
        model: version whose queries were used.
        recall_before: recall@10 with the previous parameters.
        parameters: current parameters; unchanged if the recall was sufficient.
        measured: recall, queries/s and bytes per document with these parameters, as in a manifest.
    """

    generation: int
    model: str
    recall_before: float
    parameters: dict[str, int]
    measured: dict[str, Any]


def retune(
    store: Store, model: str, queries: Float32[np.ndarray, "queries encoder_dim"], target: float
) -> TunedKeys | None:
    """Measure the live index with folded queries, and find new parameters where it is below the target.

    Args:
        store: read only.
        model: version whose queries these are.
        queries: folded queries, to compare with stored embeddings.
        target: required recall@10.

    Returns:
        None for an index that compares every key.
    """
    generation = open_live(store)
    if generation is None or not generation.dense.parameters or len(queries) == 0:
        return None
    dense, projection = generation.dense, generation.key_projection
    folded = key_queries(queries, projection)
    truth = exact_neighbours(generation.vectors, folded, projection)
    before = round(recall(dense, folded, truth), 4)
    if before < target:
        dense, measured = tuned(
            dense, generation.vectors, projection=projection, queries=folded, target=target
        )
        assert measured is not None
        record = measured.to_dict()
    else:
        built: dict[str, Any] = generation.manifest.dense["measured"] or {}
        record = {**built, "recall_at_10": before}
    return TunedKeys(generation.number, model, before, dict(dense.parameters), record)


def retune_in_child(
    report: Report, path: Path, model: str, queries: np.ndarray, target: float
) -> TunedKeys | None:
    """Run `retune` in a child process, for `run_spawned`."""
    os.nice(5)
    with Store.open(path, readonly=True) as store:
        return retune(store, model, queries, target)


def key_queries(
    folded: Float32[np.ndarray, "queries encoder_dim"],
    projection: Float32[np.ndarray, "key_dim encoder_dim"] | None,
) -> Float32[np.ndarray, "queries key_dim"]:
    """Multiply folded queries by W_g⁻¹, to compare them with keys projected by W_g."""
    if projection is None:
        return folded
    return np.ascontiguousarray(folded @ np.linalg.inv(projection.astype(np.float64)), np.float32)


def keep_tuned(store: Store, tuned: TunedKeys) -> None:
    """Store the parameters for the next opening."""
    content = {"generation": tuned.generation, "model": tuned.model, "parameters": tuned.parameters}
    text = json.dumps({**content, "measured": tuned.measured}, indent=1)
    replace_file(store.path / FILE_NAME, text.encode())


def kept_tuned(store: Store, generation: int) -> Mapping[str, Any] | None:
    """Return the record that `keep_tuned` stored for this generation, or None."""
    try:
        content: dict[str, Any] = json.loads((store.path / FILE_NAME).read_text())
        return content if content["generation"] == generation else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def with_tuned_parameters(store: Store, generation: Generation) -> Generation:
    """Return the generation with its stored search parameters."""
    stored = kept_tuned(store, generation.number)
    if stored is None:
        return generation
    try:
        return generation.searched_with(stored["parameters"])
    except (InvalidRequest, KeyError, AttributeError, TypeError):
        return generation  # not parameters of this kind


def keys_report(store: Store) -> dict[str, Any] | None:
    """Storage of the live generation's keys as JSON: kind, parameters, measured recall; None before a build.

    `asked` is the requested kind ("auto", for example), `kind` the one in use.
    """
    live = store.live_generation()
    if live is None or "dense" not in live.record:
        return None
    dense: dict[str, Any] = live.record["dense"]
    measured: dict[str, Any] = dense["measured"] or {}
    parameters: dict[str, int] = dense["parameters"]
    tuned = kept_tuned(store, live.number)
    if tuned is not None:
        measured, parameters = tuned.get("measured", measured), tuned.get("parameters", parameters)
    wanted = KeyOptions.of(store)
    return {
        "kind": dense["kind"],
        "asked": wanted.kind,
        "recall_target": wanted.recall_target,
        "memory_bytes": wanted.memory_bytes,
        "parameters": parameters,
        "recall_at_10": measured.get("recall_at_10"),
        "queries_per_s": measured.get("queries_per_s"),
        "bytes_per_document": measured.get("bytes_per_document"),
    }
