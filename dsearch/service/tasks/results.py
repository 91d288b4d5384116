"""Transfer of training results from the training process to the serving process, in a run's folder.

A head is a file for its tensors and one for its query memory. The tuned search that training started from is
a head of its own, since it may go live where the trained one may not.

The results include the documents that a training of scope `full` encoded. These are stored by row, not by
position, because the collection may have changed meanwhile. Documents written since are encoded when a search
first sees them; deleted ones are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64
from safetensors.numpy import load as load_arrays
from safetensors.numpy import load_file, save_file
from safetensors.torch import load, save
from safetensors.torch import load_file as torch_file  # pyright: ignore

from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection, EncodedDocuments, Snapshot, head_bytes, head_from_bytes
from dsearch.engine.models.memory import memory_bytes, memory_from_bytes
from dsearch.engine.models.tensors import metadata_of
from dsearch.engine.models.training_record import LearnedQueries
from dsearch.index.tokens import DocumentTokens, TokenCodec, TokenTable
from dsearch.store import MemoryRow, Passages

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head
    from dsearch.engine.snapshot import SnapshotTokens
    from dsearch.training import Candidate, JobResult


_HEAD, _TUNED = "head", "tuned"
_ENCODER = "encoder.safetensors"
_LEARNED = "lessons.safetensors"
_STAGE = "second-stage.safetensors"


def write_made(folder: Path, made: Candidate) -> dict[str, Any]:
    """Write the parts of a candidate into a run's folder. Returns its record and their names as JSON."""
    tuned = made.tuned
    heads = {_HEAD: made.head} if tuned is None else {_HEAD: made.head, _TUNED: tuned.head}
    for name, head in heads.items():
        _tensors_of(folder, name).write_bytes(head_bytes(head))
        if head.memory is not None:
            _memory_of(folder, name).write_bytes(memory_bytes(head.memory))
    if made.encoder is not None:
        (folder / _ENCODER).write_bytes(save(dict(made.encoder.tensors)))
    if made.documents is not None:
        write_encoded(folder, made.documents)
    if made.learned_from is not None:
        (folder / _LEARNED).write_bytes(made.learned_from.to_bytes())
    return {
        "record": made.record,
        "tuned": None if tuned is None else tuned.record,
        "heads": {name: {"memory": head.memory is not None} for name, head in heads.items()},
        "encoder": None if made.encoder is None else asdict(made.encoder.training),
        "documents": made.documents is not None,
        "lessons": made.learned_from is not None,
    }


def read_made(folder: Path, made: dict[str, Any], collection: Collection) -> Candidate:
    """Read the output of `write_made`; of documents only those that still exist.

    Args:
        folder: folder of the run.
        made: return value of `write_made`.
        collection: collection that the model is for.
    """
    from dsearch.training import Candidate

    heads: dict[str, Head] = {}
    for name, parts in made["heads"].items():
        heads[name], _ = head_from_bytes(_tensors_of(folder, name).read_bytes(), collection.store.dimension)
        if parts["memory"]:
            heads[name].memory = memory_from_bytes(_memory_of(folder, name).read_bytes())
    change = None
    if made["encoder"] is not None:
        # Mapped; the run's folder may be deleted while it is used.
        weights = torch_file(folder / _ENCODER)
        change = EncoderChange(EncoderTraining(**made["encoder"]), weights)
    return Candidate(
        head=heads[_HEAD],
        record=made["record"],
        encoder=change,
        documents=read_encoded(folder, collection.snapshot) if made["documents"] else None,
        learned_from=LearnedQueries.from_bytes((folder / _LEARNED).read_bytes()) if made["lessons"] else None,
        tuned=None if _TUNED not in heads else Candidate(head=heads[_TUNED], record=made["tuned"]),
    )


_ROWS = "rows.safetensors"


def write_rows(folder: Path, rows: Sequence[MemoryRow]) -> None:
    """Write rows of the query memory into a run's folder."""
    tensors = {
        "states": np.stack([row.state for row in rows]),
        "counts": np.array([len(row.grades) for row in rows], np.int64),
        "documents": np.array([document for row in rows for document in row.grades], np.int64),
        "grades": np.array([grade for row in rows for grade in row.grades.values()], np.float64),
    }
    named = [[row.text, row.source, row.key] for row in rows]
    save_file(tensors, folder / _ROWS, {"rows": json.dumps(named)})


def read_rows(folder: Path) -> list[MemoryRow]:
    """Read the output of `write_rows`."""
    content = (folder / _ROWS).read_bytes()
    tensors = load_arrays(content)
    ends = np.cumsum(tensors["counts"])[:-1]
    documents, grades = (np.split(tensors[name], ends) for name in ("documents", "grades"))
    pairs = [
        dict(zip(of.tolist(), to.tolist(), strict=True)) for of, to in zip(documents, grades, strict=True)
    ]
    named = json.loads(metadata_of(content)["rows"])
    return [
        MemoryRow(text, state, graded, source, key)
        for (text, source, key), state, graded in zip(named, tensors["states"], pairs, strict=True)
    ]


def write_learned(folder: Path, learned: JobResult) -> dict[str, Any]:
    """Write the result of a job into a run's folder. Returns the rest as JSON, for `register_learned`."""
    rows, stage = learned.outcomes, learned.second_stage
    if rows is not None and rows.passed:
        write_rows(folder, rows.rows)
    if stage is not None and stage.passed:
        (folder / _STAGE).write_bytes(save(dict(stage.stage.state_dict())))
    return {
        "made": write_made(folder, learned.result),
        "parent": learned.parent,
        "examples": learned.examples,
        "left_out": dict(learned.left_out),
        "outcomes": rows.record if rows is not None and rows.passed else None,
        "second_stage": None if stage is None else stage.record,
    }


def register_learned(
    folder: Path, outcome: dict[str, Any], collection: Collection, *, promote: bool, accept: bool, task: str
) -> dict[str, Any]:
    """Register what a task has learned, and return the result as JSON.

    Args:
        folder: folder of the run.
        outcome: return value of `write_learned`.
        collection: collection of the model.
        promote, accept: as of `JobResult.registered`.
        task: id of the task.
    """
    from dsearch.training import JobResult
    from dsearch.training.candidate import RowsCandidate, StageCandidate

    made, rows, record = read_made(folder, outcome["made"], collection), None, outcome["second_stage"]
    stage = None
    if outcome["outcomes"] is not None:
        rows = RowsCandidate(rows=read_rows(folder), record=outcome["outcomes"])
    if record is not None:
        stage = StageCandidate(stage=_stage(folder, record), record={**record, "task": task})
    result = replace(made, record={**made.record, "task": task})
    learned = JobResult(result, outcome["parent"], outcome["examples"], outcome["left_out"], stage, rows)
    return learned.summary(learned.registered(collection, promote=promote, accept=accept))


def _stage(folder: Path, record: Mapping[str, Any]) -> SecondStage:
    """The second stage of a record; its weights are kept only where it may go live."""
    named = record["second_stage"].get("reranker")
    stage = SecondStage(reranker=None if named is None else RerankerIdentity(*named))
    if record["gate"]["verdict"] == "passed":
        stage.load_state_dict(load((folder / _STAGE).read_bytes()))
    return stage.eval()


def _tensors_of(folder: Path, head: str) -> Path:
    return folder / f"{head}.safetensors"


def _memory_of(folder: Path, head: str) -> Path:
    return folder / f"{head}-memory.safetensors"


DOCUMENTS_NAME = "documents.safetensors"
_TOKENS = "tokens."


def write_encoded(folder: Path, documents: EncodedDocuments) -> None:
    """Write every document that can be found into a run's folder."""
    state = documents.state
    visible = state.visible()
    further = {at: documents.further[at] for at in visible.tolist() if at in documents.further}
    dimension = documents.embeddings.shape[1]
    spans = [passages.spans for passages in further.values()]
    beside = [passages.embeddings for passages in further.values()]
    tensors = {
        "rows": state.rows(visible),
        "embeddings": np.ascontiguousarray(documents.embeddings[visible]),
        "long": state.rows(np.array([*further], np.int64)),
        "passages": np.array([len(of) for of in spans], np.int64),
        "spans": np.concatenate([*spans, np.zeros((0, 2), np.int64)]),
        "further": np.concatenate([*beside, np.zeros((0, dimension), np.float32)]),
        **_tensors_of_tokens(documents.tokens, visible),
    }
    save_file(tensors, folder / DOCUMENTS_NAME)


def read_encoded(folder: Path, present: Snapshot) -> EncodedDocuments:
    """Read the output of `write_encoded`, for the documents that still exist.

    Args:
        folder: folder of the run.
        present: current state of the collection.
    """
    tensors = load_file(folder / DOCUMENTS_NAME)
    rows = tensors["rows"]
    at = present.positions_of(rows)
    embeddings = np.zeros((present.positions, tensors["embeddings"].shape[1]), np.float32)
    embeddings[at[at >= 0]] = tensors["embeddings"][at >= 0]
    present_rows = present.rows(present.visible())
    state = present.excluding(np.setdiff1d(present_rows, rows), present.sequence)
    counts = tensors["passages"]
    spans = np.split(tensors["spans"], np.cumsum(counts)[:-1])
    beside = np.split(tensors["further"], np.cumsum(counts - 1)[:-1])
    places = present.positions_of(tensors["long"]).tolist()
    further = {
        place: Passages(of, embedded)
        for place, of, embedded in zip(places, spans, beside, strict=False)
        if place >= 0
    }
    return EncodedDocuments(state, embeddings, further, _tokens_at(at, present.positions, tensors))


def _tensors_of_tokens(
    tokens: TokenTable | SnapshotTokens | None, visible: Int64[np.ndarray, " visible"]
) -> dict[str, np.ndarray]:
    """The tokens of documents that can be found, and their codec; nothing without."""
    if tokens is None:
        return {}
    table = TokenTable.of(tokens.codec, [tokens.document(at) for at in visible.tolist()])
    arrays = {"offsets": table.offsets, "codes": table.codes, "spans": table.spans, "present": table.present}
    return {f"{_TOKENS}{name}": array for name, array in (arrays | tokens.codec.arrays()).items()}


def _tokens_at(
    at: Int64[np.ndarray, " rows"], positions: int, tensors: Mapping[str, np.ndarray]
) -> TokenTable | None:
    """Read the output of `_tensors_of_tokens`; `at`: present position of each row, −1 where it is gone."""
    arrays = {
        name.removeprefix(_TOKENS): array for name, array in tensors.items() if name.startswith(_TOKENS)
    }
    if not arrays:
        return None
    codec = TokenCodec.of_arrays(arrays)
    table = TokenTable(codec, *(arrays[name] for name in ("offsets", "codes", "spans", "present")))
    of_documents: list[DocumentTokens | None] = [None] * positions
    for number, position in enumerate(at.tolist()):
        if position >= 0:
            of_documents[position] = table.document(number)
    return TokenTable.of(codec, of_documents)
