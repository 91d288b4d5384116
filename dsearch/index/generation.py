"""One generation: the immutable folder of everything that a search reads, built and opened as a whole.

    000012/manifest.json        every file with its size and SHA-256 (index/README.md)
           rows.npy             int64 [n], ascending: the store's rows, by position
           embeddings.npy       float32 [n, encoder_dim]; of long documents there are more (passages.py)
           key_projection.npy   float32 [key_dim, encoder_dim], W_g; only if it is not the identity
           keys.faiss           embeddings, or embeddings · W_gᵀ
           keyword/             BM25; only if asked for
           fields/              metadata by field (fields.py); only if given

A build works in a sibling folder with a name of its own and is renamed when every byte is on the disk: a
crash leaves such a sibling behind (`remove_unfinished` clears it), never half a generation.
"""

from __future__ import annotations

import copy
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import numpy as np
from jaxtyping import Float32, Int, Int64

from dsearch.errors import Conflict, CorruptData, InvalidRequest, UnsupportedFormat
from dsearch.index.dense import DenseIndex
from dsearch.index.durable import FileIdentity, file_digest, files_below, publish_folder
from dsearch.index.fields import FOLDER as FIELDS_FOLDER
from dsearch.index.fields import NAME as FIELDS_NAME
from dsearch.index.fields import Fields, FieldsBuilder
from dsearch.index.inputs import checked_identity, checked_projection, checked_rows, counted, write_blocks
from dsearch.index.keyword import KeywordIndex
from dsearch.index.manifest import FORMAT, MANIFEST_NAME, WITHOUT_PASSAGES, Manifest
from dsearch.index.passages import PassageTable, PassageWriter
from dsearch.index.tokenize import Tokenizer
from dsearch.index.tuning import RECALL_TARGET, build_tuned
from dsearch.types import Progress

_UNFINISHED = ".building-"
# Of files that were proven before, the smallest are all the same: so many bytes take some tenths of a second.
_PROVEN_AT_ONCE = 64 << 20

Texts = Callable[[Int64[np.ndarray, " documents"]], Iterable[str]]


class Generation:
    """An open generation: safe to read from many threads, never changed.

    Attributes:
        folder: where it lies.
        manifest: what it consists of.
        number: its number.
        rows: int64 [n], ascending: the store's row at each position.
        embeddings: float32 [n, encoder_dim], a read-only memory map.
        passages: the further embeddings of long documents.
        vectors: both, one behind the other: float32 [n + m, encoder_dim], a read-only memory map.
        dense: the keys of all vectors.
        keyword: BM25, or None when the generation was built without.
        fields: the documents' metadata, or None when the generation was built without.
        key_projection: W_g, float32 [key_dim, encoder_dim], or None for the identity.
        recut: whether `keyword` was built when this was opened; see `open`.
        identities: what its files were when it was opened, before a byte of them was read.
        unproven: files that were not held against their digests: they were taken to be what they had been.
    """

    recut = False
    fields: Fields | None = None
    identities: Mapping[str, FileIdentity] = MappingProxyType({})
    unproven: tuple[str, ...] = ()

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        rows: Int64[np.ndarray, " documents"],
        vectors: Float32[np.ndarray, "vectors encoder_dim"],
        passages: PassageTable,
        dense: DenseIndex,
        keyword: KeywordIndex | None,
        key_projection: Float32[np.ndarray, "key_dim encoder_dim"] | None,
    ):
        self.folder = folder
        self.manifest = manifest
        self.number = manifest.number
        self.rows = rows
        self.embeddings = vectors[: len(rows)]
        self.passages = passages
        self.vectors = vectors
        self.dense = dense
        self.keyword = keyword
        self.key_projection = key_projection
        self._original: Generation | None = None

    @classmethod
    def build(
        cls,
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
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Manifest:
        """Build a generation and make it visible under `folder`, durably and as a whole.

        Args:
            folder: its final place, `<collection>/generations/000012`; must not exist.
            number: its number, 1 or more.
            sequence: the store's last operation that it contains.
            rows: [documents], strictly ascending row numbers, one per document.
            embeddings: [documents, encoder_dim], or an iterable of blocks of rows; give one block of shape
                [0, encoder_dim] when there are no documents.
            passages: the further embeddings of long documents, by ascending position, in any number of parts.
            texts: one text per document, read once; not read when `keyword` is false.
            encoder: the encoder's identity, as JSON.
            key_projection: W_g, [key_dim, encoder_dim]; None or the identity matrix for keys = embeddings.
            dense_kind: a name in `DENSE_KINDS`, or "auto".
            recall_target: the recall@10 that the parameters of an approximate kind are sought for.
            memory_bytes: what the keys may take when "auto" chooses; None for no bound.
            queries: [queries, key_dim], vectors like those that the keys will be searched with, to measure
                and tune by; made of the keys when None.
            keyword: whether to build BM25; or an index of these documents that is there already.
            tokenizer: how texts are cut; English by default.
            fields: the documents' metadata, complete when their texts were read.
            on_progress: told of stages `embeddings`, `keys`, `keyword` and `digests`.

        Raises:
            InvalidRequest: rows not ascending, numbers of rows, embeddings and texts that differ, NaN.
            DimensionMismatch: blocks or a projection of another length.
            Conflict: something lies at `folder` already.
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
                _open_matrix(path),
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
                        f"metadata of {len(fields)} documents for {len(rows)} rows; give all"
                    )
                fields.save(unfinished / FIELDS_FOLDER)
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

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        digest: str | None = None,
        proven: Mapping[str, FileIdentity] | None = None,
        mmap: bool = True,
        texts: Texts | None = None,
    ) -> Generation:
        """Open a built generation.

        Give `digest`, the `Manifest.digest` that the store registered, to notice a folder that was exchanged.

        Every file is compared with its SHA-256 before FAISS or NumPy read a byte of it: FAISS loads most
        flipped bits without an error. `proven` says what files were when that was done before: large ones
        that nobody has written to since are taken as they are (`unproven`), and `prove` should follow.

        With `mmap` keys and postings stay on disk until they are
        used, as the embeddings always do.

        `texts` gives the texts of rows: where they were cut into terms by another release's rules they are
        cut again, in memory (`recut`). Build the next generation then: this takes as long at each opening.

        Raises:
            CorruptData: a file is missing or not what was written; the message names it and the way out.
            UnsupportedFormat: written by a release with another format, or other rules and no `texts`.
        """
        manifest = Manifest.read(folder)
        if digest is not None and manifest.digest != digest:
            raise CorruptData(
                f"{folder / MANIFEST_NAME}: of another generation than the store registered; "
                "delete this folder and build the generation again"
            )
        identities = manifest.identities(folder)
        unproven = _large(
            [name for name, was in (proven or {}).items() if identities.get(name) == was], manifest
        )
        manifest.verify(folder, sizes_alone=unproven)
        try:
            rows = np.load(folder / "rows.npy", allow_pickle=False)
            vectors = _open_matrix(folder / "embeddings.npy")
            passages = PassageTable.load(folder, vectors[len(rows) :])
            projection = None
            if "key_projection.npy" in manifest.files:
                projection = np.load(folder / "key_projection.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CorruptData(f"{folder}: {error}; build the generation again") from error
        keyword, recut = None, False
        if manifest.keyword is not None:
            keyword, recut = _keyword_index(folder / "keyword", manifest.keyword, rows, texts, mmap=mmap)
        dense = DenseIndex.load(
            folder / "keys.faiss",
            kind=manifest.dense["kind"],
            parameters=manifest.dense["parameters"],
            mmap=mmap,
        )
        generation = cls(
            folder,
            manifest,
            rows=rows,
            vectors=vectors,
            passages=passages,
            dense=dense,
            keyword=keyword,
            key_projection=projection,
        )
        generation.recut = recut
        generation.identities, generation.unproven = identities, unproven
        if f"{FIELDS_FOLDER}/{FIELDS_NAME}" in manifest.files:
            generation.fields = Fields(folder / FIELDS_FOLDER, len(rows))
        generation._check()
        return generation

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.rows)

    def positions_of(self, rows: Int[np.ndarray, " some"]) -> Int64[np.ndarray, " some"]:
        """The position of each row in this generation, −1 where it is not in it."""
        rows = np.asarray(rows, np.int64)
        if len(self) == 0:
            return np.full(rows.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self.rows, rows), len(self) - 1)
        return np.where(self.rows[at] == rows, at, -1)

    def prove(self, cancelled: Callable[[], bool] | None = None) -> None:
        """Hold the files that are `unproven` against their digests.

        Raises:
            CorruptData: one is not what was written; the message names it and the way out.
        """
        proven = [name for name in self.manifest.files if name not in self.unproven]
        self.manifest.verify(self.folder, sizes_alone=proven, cancelled=cancelled)

    @property
    def original(self) -> Generation:
        """What this is a twin of (`searched_with`); itself when it is none."""
        return self if self._original is None else self._original.original

    def searched_with(self, parameters: Mapping[str, int]) -> Generation:
        """The same generation, its keys searched with other parameters (see `DenseIndex.using`)."""
        twin = copy.copy(self)
        twin.dense = self.dense.using(parameters)
        twin._original = self  # whoever waits for the first one's end waits for this one's
        return twin

    def _check(self) -> None:
        """Refuse files that are whole but do not belong together."""
        manifest = self.manifest
        count, key_dim = manifest.rows, manifest.key_dim
        projection = None if self.key_projection is None else self.key_projection.shape
        fits = {
            "rows.npy": self.rows.shape == (count,) and self.rows.dtype == np.int64,
            "embeddings.npy": self.vectors.shape == (count + manifest.passages, manifest.encoder_dim)
            and self.vectors.dtype == np.float32,
            "keys.faiss": (len(self.dense), self.dense.key_dim) == (len(self.vectors), key_dim),
            "key_projection.npy": projection == (key_dim, manifest.encoder_dim)
            if projection is not None
            else key_dim == manifest.encoder_dim,
            "keyword": self.keyword is None or self.recut or self.keyword.settings() == manifest.keyword,
        }
        for name, fit in fits.items():
            if not fit:
                raise CorruptData(
                    f"{self.folder / name}: does not fit the manifest ({count} rows, encoder_dim "
                    f"{manifest.encoder_dim}, key_dim {key_dim}); build the generation again"
                )


def remove_unfinished(generations: Path) -> list[str]:
    """Delete what crashed builds left in a collection's `generations` folder; the names that were deleted.

    Only the process that holds the home's lock may call it, and not while it builds.
    """
    left = sorted(path for path in generations.glob(f".*{_UNFINISHED}*") if path.is_dir())
    for path in left:
        shutil.rmtree(path, ignore_errors=True)  # its builder may be ending just now; the next time it goes
    return [path.name for path in left]


def _large(names: Iterable[str], manifest: Manifest) -> tuple[str, ...]:
    """Those of these files that are not read at once, the smallest being read first."""
    sizes = sorted((int(manifest.files[name]["bytes"]), name) for name in names if name in manifest.files)
    sums = accumulate(size for size, _ in sizes)
    return tuple(name for (_, name), bytes in zip(sizes, sums, strict=True) if bytes > _PROVEN_AT_ONCE)


def _keyword_index(
    folder: Path,
    settings: Mapping[str, Any],
    rows: Int64[np.ndarray, " documents"],
    texts: Texts | None,
    *,
    mmap: bool,
) -> tuple[KeywordIndex, bool]:
    """The index in `folder`, or another where its texts were cut by another release's rules; and whether."""
    try:
        return KeywordIndex.load(folder, mmap=mmap), False
    except UnsupportedFormat:
        if texts is None:
            raise
    tokenizer = Tokenizer.from_settings(settings["tokenizer"], rebuild=True)
    return KeywordIndex.build(texts(rows), tokenizer=tokenizer, k1=settings["k1"], b=settings["b"]), True


class _Reporter:
    """Turns (stage, done, total) into `Progress` for a listener, if there is one."""

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


def _open_matrix(path: Path) -> np.ndarray:
    """A read-only memory map, or an array where there is nothing to map."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an empty file region cannot be mapped
        array = np.load(path, allow_pickle=False)
        array.flags.writeable = False
        return array
