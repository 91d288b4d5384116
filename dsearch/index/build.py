"""Build a generation in a sibling folder, which is renamed when every byte is on the disk.

A crash leaves the sibling folder behind (`remove_unfinished` deletes it), never half a generation.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from dsearch.errors import Conflict, InvalidRequest, amount
from dsearch.index.dense.tuning import RECALL_TARGET, build_tuned
from dsearch.index.durable import file_digest, files_below, publish_folder
from dsearch.index.keyword.index import KeywordIndex
from dsearch.index.keyword.tokenizer import Tokenizer
from dsearch.index.manifest import FORMAT, MANIFEST_NAME, WITHOUT_PASSAGES, Manifest
from dsearch.index.metadata import FOLDER as FIELDS_FOLDER
from dsearch.index.metadata import FieldsBuilder
from dsearch.index.passages import PassageTable, PassageWriter
from dsearch.index.tokens import FOLDER as TOKENS_FOLDER
from dsearch.index.tokens import DocumentTokens, TokenCodec, write_tokens
from dsearch.index.validation import (
    checked_identity,
    checked_projection,
    checked_rows,
    counted,
    open_matrix,
    write_blocks,
)
from dsearch.types import Progress

_UNFINISHED = ".building-"


def write_generation(
    folder: Path,
    *,
    number: int,
    sequence: int,
    rows: np.ndarray,
    embeddings: np.ndarray | Iterable[np.ndarray],
    passages: Iterable[PassageTable] = (),
    texts: Iterable[str] = (),
    encoder: Mapping[str, Any],
    key_projection: np.ndarray | None = None,
    dense_kind: str = "Flat",
    recall_target: float = RECALL_TARGET,
    memory_bytes: int | None = None,
    queries: np.ndarray | None = None,
    keyword: bool | KeywordIndex = True,
    tokenizer: Tokenizer | None = None,
    fields: FieldsBuilder | None = None,
    tokens: tuple[TokenCodec, Iterable[DocumentTokens | None]] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Manifest:
    """Build a generation and make it visible under `folder`, durably and as a whole.

    Args:
        folder: its final place, `<collection>/generations/000012`; must not exist.
        number: its number, 1 or more.
        sequence: number of the last operation of the store that the generation contains.
        rows: [documents], strictly ascending row numbers, one per document.
        embeddings: [documents, encoder_dim], or an iterable of blocks of rows; give one block of shape
            [0, encoder_dim] when there are no documents.
        passages: further embeddings of long documents, by ascending position, in any number of parts.
        texts: one text per document, read once; not read when `keyword` is false.
        encoder: the encoder's identity, as JSON.
        key_projection: W_g, [key_dim, encoder_dim]; None or the identity matrix for keys = embeddings.
        dense_kind: a name in `DENSE_KINDS`, or "auto".
        recall_target: recall@10 that the search parameters of an approximate kind must reach.
        memory_bytes: memory limit of the keys when "auto" chooses; None for no limit.
        queries: [queries, key_dim], representative query vectors for tuning and measurement; derived from the
            keys when None.
        keyword: True to build BM25, or an existing index of these documents.
        tokenizer: tokenizer of the texts; English by default.
        fields: the documents' metadata, complete when their texts were read.
        tokens: their codec, and the tokens of each document, read once; None for no second stage.
        on_progress: callback for the stages `embeddings`, `keys`, `keyword` and `digests`.

    Raises:
        InvalidRequest: rows not ascending, numbers of rows, embeddings and texts that differ, NaN.
        DimensionMismatch: blocks or a projection of another length.
        Conflict: `folder` exists.
    """
    rows = checked_rows(rows)
    encoder = checked_identity(number, sequence, encoder)
    if folder.exists():
        raise Conflict(f"{folder} exists; a generation is never changed: build the next number")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.parent / f".{folder.name}{_UNFINISHED}{os.getpid()}-{uuid4().hex[:8]}"
    unfinished.mkdir()
    report = _Reporter(on_progress)
    try:
        np.save(unfinished / "rows.npy", rows)
        path = unfinished / "embeddings.npy"
        further = PassageWriter(passages, len(rows))
        encoder_dim = write_blocks(path, embeddings, len(rows), report, further.embeddings())
        further.save(unfinished)
        projection = checked_projection(key_projection, encoder_dim)
        if projection is not None:
            np.save(unfinished / "key_projection.npy", projection)
        dense, measured = build_tuned(
            open_matrix(path),
            dense_kind,
            projection=projection,
            queries=queries,
            target=recall_target,
            memory_bytes=memory_bytes,
            on_block=lambda done: report("keys", done, len(rows) + further.count),
        )
        if measured is not None and further.count:
            share = (len(rows) + further.count) / len(rows)
            per_document = round(measured.bytes_per_document * share, 1)
            measured = replace(measured, bytes_per_document=per_document)
        dense.save(unfinished / "keys.faiss")
        settings = None
        if keyword is not False:
            index = keyword
            if not isinstance(index, KeywordIndex):
                index = KeywordIndex.build(counted(texts, len(rows), report), tokenizer=tokenizer)
            index.save(unfinished / "keyword")
            settings = index.settings()
        if fields is not None:
            if len(fields) != len(rows):
                raise InvalidRequest(
                    f"metadata of {amount(len(fields), 'document')} for {amount(len(rows), 'row')}; give all"
                )
            fields.save(unfinished / FIELDS_FOLDER)
        if tokens is not None:
            codec, of_documents = tokens
            written = write_tokens(unfinished / TOKENS_FOLDER, codec, of_documents)
            if written != len(rows):
                raise InvalidRequest(
                    f"tokens of {amount(written, 'document')} for {amount(len(rows), 'row')}; give all"
                )
        manifest = Manifest(
            number=number,
            sequence=sequence,
            created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            rows=len(rows),
            encoder_dim=encoder_dim,
            key_dim=dense.key_dim,
            dense={
                "kind": dense.kind,
                "metric": "inner_product",
                "parameters": dense.parameters,
                "measured": None if measured is None else measured.to_dict(),
            },
            keyword=settings,
            encoder=encoder,
            files=_digests(unfinished, report),
            passages=further.count,
            format=FORMAT if further.count else WITHOUT_PASSAGES,
        )
        (unfinished / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        publish_folder(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return manifest


def remove_unfinished(generations: Path) -> list[str]:
    """Delete the leftovers of crashed builds in a collection's `generations` folder; return their names.

    Only the process that holds the home's lock may call it, and not during a build.
    """
    left = sorted(path for path in generations.glob(f".*{_UNFINISHED}*") if path.is_dir())
    for path in left:
        shutil.rmtree(path, ignore_errors=True)  # its builder may be exiting; the next call deletes it
    return [path.name for path in left]


class _Reporter:
    """Convert (stage, done, total) to `Progress` for an optional listener."""

    def __init__(self, listener: Callable[[Progress], None] | None):
        self._listener = listener
        self._start = time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._listener is not None:
            self._listener(Progress(stage, done, total, time.monotonic() - self._start))


def _digests(folder: Path, report: _Reporter) -> dict[str, dict[str, Any]]:
    paths = list(files_below(folder))
    digests: dict[str, dict[str, Any]] = {}
    for done, path in enumerate(paths, start=1):
        size, sha256 = file_digest(path)
        digests[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": sha256}
        report("digests", done, len(paths))
    return digests
