"""Models on disk: `models/v3/head.safetensors` and `model.json`, written once and never changed.

The format of a model says which parts it has, so that a release that does not know a part refuses the model
and does not serve the head without it. Format 2: a trained query encoder, in `encoder/` (encoders.py). Format
3: a trained document encoder, in `documents/` (documents.py). Format 4: its own k1 and b of the keyword
score. Format 7: another kind of query projection than the default (`Head.query_side`).
Format 10: a memory of judged queries, in `memory.safetensors` (memory.py); format 9: in half precision; 16:
with a share of lending. Format 12: a learned score or an output projection. Format 13: shares of the heads
that follow the query. Format 17: a second stage. These are among the head's tensors; its reranker lies
elsewhere. Formats 6 and 8 are retired; so are 11, 14 and 15, which had other tensors in a second stage. Of
format 5 the weight for "nothing fits" is left out: it changed no order of hits.

The module also finds the version that was live before, and deletes versions.

A version that learned the values of a field (W_V, W_O and b, on which no ranking depends) names the field in
its record. A version that is made from another one takes over its values, unless it has values of its own or
embeds the documents otherwise.

A version with a part that earlier releases trained and this release does not serve is retired. It stays
registered and keeps its files. Its head alone would rank differently from the trained model, so the version
cannot be queried. If it was promoted, its nearest ancestor without such a part answers instead. A second
stage of an earlier release may have such a part with all weights 0, which changes no order: it is left out.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors.numpy import load as load_arrays

from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.attention.memory_rows import FixedMemory
from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.encoder import EncoderIdentity
from dsearch.engine.models.documents import FIRST, FOLDER, EncodedDocuments, write_documents
from dsearch.engine.models.encoders import WEIGHTS_NAME, verified, write_change
from dsearch.engine.models.memory import MEMORY_NAME, fixed_memory, memory_bytes, memory_record
from dsearch.engine.models.training_record import LEARNED_NAME, LearnedQueries
from dsearch.errors import Command, Conflict, CorruptData, Gone, InvalidRequest, UnsupportedFormat
from dsearch.index import Manifest
from dsearch.index.durable import file_digest, publish_folder, sync_folder
from dsearch.store import ModelRecord, Store

if TYPE_CHECKING:
    from torch import Tensor

    from dsearch.attention.retrieval.head import Head
    from dsearch.encoder import EncoderChange


Tensors = TypeVar("Tensors")

UNTRAINED = "v0"
FORMAT = 1
FORMAT_WITH_ENCODER = 2
FORMAT_WITH_DOCUMENTS = 3
FORMAT_WITH_WEIGHTING = 4
FORMAT_WITH_QUERY_SIDE = 7
FORMAT_WITH_MEMORY = 10
FORMAT_WITH_SCORE = 12
FORMAT_WITH_EXCITATION = 13
FORMAT_WITH_LENDING = 16
FORMAT_WITH_SECOND_STAGE = 17
RERANKER = "reranker"  # member of a record: of the second stage
NEWEST_FORMAT = 17
HEAD_NAME = "head.safetensors"
RECORD_NAME = "model.json"
NULL_SLOT = "null_slot"  # tensor of earlier releases' heads: a weight for "nothing fits"
SCOPE = "values"  # in the record of a version that changed nothing else
READOUT = "readout"  # in a record: field, kind and labels of the learned values


def save_model(
    store: Store,
    head: Head,
    record: dict[str, Any],
    *,
    parent: str,
    encoder: EncoderChange | None = None,
    documents: EncodedDocuments | None = None,
    learned_from: LearnedQueries | None = None,
) -> str:
    """Write a trained head durably, register it, and return its version. It is not live yet.

    Args:
        store: the collection's.
        head: the head.
        record: whatever should be known of it later: scores, data, seed.
        parent: the version that it was trained from.
        encoder: what training changed of the query encoder, if it did.
        documents: as that encoder sees them, where it is the documents' too.
        learned_from: queries that it learned from; nothing answers by them.

    Raises:
        InvalidRequest: documents without an encoder, or of several passages.
    """
    from safetensors.torch import save

    if documents is not None and encoder is None:
        raise InvalidRequest("documents without the encoder that they were encoded by; give both")
    version = store.next_model_version()
    folder = store.path / "models" / version
    unfinished = unfinished_folder(store, version)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    (unfinished / HEAD_NAME).write_bytes(save(head.own_tensors()))
    names, format = [HEAD_NAME], FORMAT
    if encoder is not None:
        base = EncoderIdentity.from_dict(store.encoder)
        record = {**record, "query_encoder": write_change(unfinished, encoder, base)}
        names, format = [HEAD_NAME, WEIGHTS_NAME], FORMAT_WITH_ENCODER
    if learned_from is not None:
        (unfinished / LEARNED_NAME).write_bytes(learned_from.to_bytes())
        names = [*names, LEARNED_NAME]
    if head.memory is not None:
        (unfinished / MEMORY_NAME).write_bytes(memory_bytes(head.memory))
        names = [*names, MEMORY_NAME]
        record = {**record, "memory": memory_record(head.memory)}
    digests = {name: file_digest(unfinished / name) for name in names}
    files = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in digests.items()}
    if documents is not None:
        identity = EncoderIdentity.from_dict(record["query_encoder"]["identity"])
        files |= write_documents(unfinished, version, store, documents, identity)
        digest = Manifest.read(unfinished / FOLDER / FIRST).digest
        record, format = {**record, "documents": {"manifest_digest": digest}}, FORMAT_WITH_DOCUMENTS
    if head.bm25 is not None:
        format = FORMAT_WITH_WEIGHTING
    if "query_side" in head.config():
        format = FORMAT_WITH_QUERY_SIDE
    if head.memory is not None:
        format = FORMAT_WITH_MEMORY
    if head.learned_score is not None or head.output is not None:
        format = FORMAT_WITH_SCORE
    if head.excitation is not None:
        format = FORMAT_WITH_EXCITATION
    if head.memory is not None and head.memory.lending != 1.0:
        format = FORMAT_WITH_LENDING
    if head.second_stage is not None:
        format = FORMAT_WITH_SECOND_STAGE
        if head.second_stage.reranker is not None:
            record = {**record, RERANKER: [*head.second_stage.reranker]}
    record = {
        **record,
        "format": format,
        "version": version,
        "parent": parent,
        "encoder": store.encoder,
        "head": head.config(),
        "files": files,
    }
    (unfinished / RECORD_NAME).write_text(json.dumps(record, indent=1))
    publish_folder(unfinished, folder)
    store.add_model(version, parent, record)
    return version


def unfinished_folder(store: Store, version: str) -> Path:
    """Folder in which a version is written before it has its name."""
    return store.path / "models" / f".{version}.writing"


def load_head(store: Store, version: str, memory: FixedMemory | None = None) -> Head:
    """Load the head of a version; v0 is the untrained one.

    Args:
        store: store of the versions.
        version: name.
        memory: its memory, if it was loaded before.

    Raises:
        ModelNotFound: no such version.
        CorruptData: the file is not what was registered.
        UnsupportedFormat: written by a release with another format.
        Gone: it has a part that this release does not serve.
    """
    from safetensors.torch import load

    from dsearch.attention.retrieval.head import Head
    from dsearch.attention.retrieval.memory import QueryMemory

    if version == UNTRAINED:
        return Head(store.dimension).eval()
    record, content = _stored(store, version)
    head = Head(**record["head"])
    head.load_state_dict(_served_tensors(load(content)))
    if head.second_stage is not None:
        head.second_stage.reranker = _reranker_of(record)
    if memory is None:
        memory = _memory(store, version, record)
    if memory is not None:
        head.memory = QueryMemory.sharing(memory)
    return head.eval()


def load_fixed_head(store: Store, version: str) -> FixedHead | None:
    """Load the head of a version to search with, in NumPy; None if one of its parts needs torch.

    Raises:
        As `load_head`.
    """
    if version == UNTRAINED:
        return FixedHead(store.dimension)
    record, content = _stored(store, version)
    shape = record["head"]
    heads = int(shape.get("heads", 1))
    side = shape.get("query_side") or ("linear" if heads == 1 else "low-rank")
    tensors = _served_tensors(load_arrays(content))
    head = FixedHead.of_tensors(tensors, heads=heads, query_side=side, reranker=_reranker_of(record))
    if head is not None:
        head.memory = _memory(store, version, record)
    return head


def _served_tensors(tensors: dict[str, Tensors]) -> dict[str, Tensors]:
    """The tensors of a served head, without those of retired parts, which are all 0, and of the null slot."""
    left_out = (*RETIRED_TENSORS, NULL_SLOT)
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}


def _reranker_of(record: dict[str, Any]) -> RerankerIdentity | None:
    """The reranker of a version's second stage, which is not among its tensors."""
    return RerankerIdentity(*record[RERANKER]) if RERANKER in record else None


def _memory(store: Store, version: str, record: dict[str, Any]) -> FixedMemory | None:
    """The memory of a version; None without one."""
    if MEMORY_NAME not in record["files"]:
        return None
    return fixed_memory(verified(store, version, MEMORY_NAME, record["files"][MEMORY_NAME]["sha256"]))


def _stored(store: Store, version: str) -> tuple[dict[str, Any], bytes]:
    """The record of a version and the bytes of its head."""
    record = store.model(version).record
    if record.get("format") not in range(FORMAT, NEWEST_FORMAT + 1):
        raise UnsupportedFormat(
            f"model {version} has format {record.get('format')}; this release reads {FORMAT} to "
            f"{NEWEST_FORMAT}"
        )
    require_served(store, version)
    return record, verified(store, version, HEAD_NAME, record["files"][HEAD_NAME]["sha256"])


def load_learned_queries(store: Store, version: str) -> LearnedQueries | None:
    """Load the queries that a version learned from; None if they were not stored.

    Raises:
        ModelNotFound: no such version.
        CorruptData: the file differs from the registered one.
    """
    if version == UNTRAINED:
        return None
    files: dict[str, dict[str, str]] = store.model(version).record["files"]
    if LEARNED_NAME not in files:
        return None
    return LearnedQueries.from_bytes(verified(store, version, LEARNED_NAME, files[LEARNED_NAME]["sha256"]))


def way_back(store: Store) -> list[str]:
    """List the versions to roll back to, in order of promotion; the first is the untrained one.

    Like the pages that a browser goes back to: a version that was promoted lies on top of the one that
    answered before; going back to one, by rollback or by promoting it again, takes away what lies above.
    Versions that this release does not serve are left out.
    """
    pile = [UNTRAINED]
    for version in reversed(store.model_history()):
        if version in pile:
            del pile[pile.index(version) + 1 :]
        else:
            pile.append(version)
    served = {UNTRAINED, *(model.version for model in store.models() if retired_part(store, model) is None)}
    return [version for version in pile if version in served]


def before_live(store: Store) -> str:
    """Return the version that a rollback promotes.

    Raises:
        Conflict: the untrained one is live, and nothing lies before it.
    """
    pile, answers = way_back(store), served_version(store)
    if pile[-1] == answers:
        pile.pop()
    if not pile:
        raise Conflict(
            f"{answers} answers, and nothing answered before it; promote a version",
            hint=Command("promote", ("VERSION", "-c", store.name)),
        )
    return pile[-1]


def undo_command(store: Store, previous: str) -> Command:
    """Command that lets `previous` answer again, after others were made live in its place.

    A rollback goes back by one version; where that is another one than `previous`, this one is promoted.
    """
    with suppress(Conflict):
        if before_live(store) == previous:
            return Command("rollback", ("-c", store.name))
    return Command("promote", (previous, "-c", store.name))


def delete_version(store: Store, version: str) -> None:
    """Unregister a version, then remove its files.

    Its number is not given again: what was answered by it keeps naming it.

    Raises:
        ModelNotFound, InvalidRequest (v0).
        Conflict: it answers.
    """
    store.delete_model(version)
    folder = store.path / "models" / version
    # Under a name that the next opening clears, should this be cut short.
    doomed = folder.with_name(f".{version}.deleted.writing")
    if folder.exists():
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(folder, doomed)
        sync_folder(doomed.parent)
        shutil.rmtree(doomed)


OVERLAY_NAME = "overlay.safetensors"
CONSTANT = "constant"
RETIRED_TENSORS = {
    "second_stage.token_delta": "a matrix between tokens in its second stage (--token-matrix)",
    "second_stage.field_weights": "fields of the metadata in its second stage (--monotone-fields)",
}
_NOTHING = np.zeros(0)
FORMATS_WITH_RETIRED_TENSORS = range(11, 17)


def retired_part(store: Store, model: ModelRecord) -> str | None:
    """Name the part of a version that this release does not serve; None for a version that it serves."""
    record = model.record
    if OVERLAY_NAME in record.get("files", {}):
        return "changed keys of single documents (--overlay)"
    if record.get("head", {}).get("fusion", CONSTANT) != CONSTANT:
        return "a keyword weight of the query (--fusion gate)"
    if store.predicts_only(model.version):
        return "an attention that was trained for predictions apart from searches"
    if record.get("format") in FORMATS_WITH_RETIRED_TENSORS:
        return _retired_tensor(store, model)
    return None


def _retired_tensor(store: Store, model: ModelRecord) -> str | None:
    """Name the part of a head, among its tensors, that changes the order of hits and is not served."""
    sha256 = model.record["files"][HEAD_NAME]["sha256"]
    with suppress(CorruptData):  # which loading the head reports
        tensors = load_arrays(verified(store, model.version, HEAD_NAME, sha256))
        return next(
            (part for name, part in RETIRED_TENSORS.items() if tensors.get(name, _NOTHING).any()), None
        )
    return None


def served_version(store: Store, version: str | None = None) -> str:
    """Return a version itself, or its nearest ancestor that this release serves; v0 is always one.

    Args:
        store: the collection's.
        version: the live one when None.

    Raises:
        ModelNotFound: no such version.
    """
    model = store.model(store.live_model() if version is None else version)
    while model.parent is not None and retired_part(store, model) is not None:
        model = store.model(model.parent)  # registered for as long as its children are
    return model.version


def require_served(store: Store, version: str) -> None:
    """Return if this release serves the version.

    Raises:
        ModelNotFound: no such version.
        Gone: it has a part that this release does not serve.
    """
    part = retired_part(store, store.model(version))
    if part is not None:
        raise Gone(
            f"model {version} of collection {store.name!r} has {part}, which this release no longer serves; "
            f"ask with model {served_version(store, version)}, which it was trained from, or train anew: "
            f"dsearch train -c {store.name}"
        )


def live_problem(store: Store) -> str | None:
    """Say why the version that was promoted does not answer, and which one does; None where it answers."""
    live = store.live_model()
    part = retired_part(store, store.model(live))
    if part is None:
        return None
    answers = served_version(store, live)
    return (
        f"collection {store.name!r}: model {live} was promoted, but has {part}, which this release no longer "
        f"serves; {answers} answers in its place. To settle that: dsearch promote {answers} -c {store.name}; "
        f"or train anew: dsearch train -c {store.name}"
    )


def with_values(
    head: Head, record: Mapping[str, Any], given: Head, given_record: Mapping[str, Any]
) -> tuple[Head, dict[str, Any]]:
    """Return a head and its record with the values of another version, unless it has values of its own."""
    record = dict(record)
    if READOUT in record or not _has_values(given):
        return head, record
    if not _has_values(head):
        head = head.valuing(given)
    elif not _same_values(head, given):
        return head, record
    if READOUT in given_record:
        record[READOUT] = given_record[READOUT]
    return head, record


def _has_values(head: Head) -> bool:
    return head.output is not None or bool(head.value_delta.any())


def _same_values(head: Head, other: Head) -> bool:
    if (head.output is None) != (other.output is None):
        return False
    pairs = [(head.value_delta, other.value_delta)]
    if head.output is not None and other.output is not None:
        pairs += [(head.output.weight, other.output.weight), (head.output.bias, other.output.bias)]
    return all(_equal(*pair) for pair in pairs)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one.detach().cpu() == other.detach().cpu()).all())
