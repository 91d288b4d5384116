"""One generation: an immutable folder with everything that a search reads, built and opened as a whole.

    000012/manifest.json        every file with its size and SHA-256 (index/README.md)
           rows.npy             int64 [n], ascending: the store's rows, by position
           embeddings.npy       float32 [n, encoder_dim]; further ones of long documents follow (passages.py)
           key_projection.npy   float32 [key_dim, encoder_dim], W_g; only if it is not the identity
           keys.faiss           embeddings, or embeddings · W_gᵀ
           keyword/             BM25; optional
           fields/              metadata by field (metadata.py); optional
           tokens/              tokens of the documents (tokens.py); optional

`build.py` writes it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int64

from dsearch.errors import CorruptData, UnsupportedFormat, amount
from dsearch.index.build import write_generation
from dsearch.index.dense.index import DenseIndex
from dsearch.index.keyword.index import KeywordIndex
from dsearch.index.keyword.tokenizer import Tokenizer
from dsearch.index.manifest import MANIFEST_NAME, Manifest
from dsearch.index.metadata import FOLDER as FIELDS_FOLDER
from dsearch.index.metadata import NAME as FIELDS_NAME
from dsearch.index.metadata import MetadataFields
from dsearch.index.passages import PassageTable
from dsearch.index.tokens import FOLDER as TOKENS_FOLDER
from dsearch.index.tokens import TokenTable
from dsearch.index.validation import open_matrix

Texts = Callable[[Int64[np.ndarray, " documents"]], Iterable[str]]


class Generation:
    """An open generation: safe to read from many threads, never changed.

    Attributes:
        folder: its folder.
        manifest: its files and their digests.
        number: its number.
        rows: int64 [n], ascending: the store's row at each position.
        embeddings: float32 [n, encoder_dim], a read-only memory map.
        passages: further embeddings of long documents.
        vectors: both, concatenated: float32 [n + m, encoder_dim], a read-only memory map.
        dense: keys of all vectors.
        keyword: BM25; None if the generation was built without it.
        fields: metadata of the documents; None if the generation was built without it.
        tokens: tokens of the documents, for a second stage; None if the generation was built without it.
        key_projection: W_g, float32 [key_dim, encoder_dim], or None for the identity.
        recut: True if `keyword` was rebuilt on opening; see `open`.
    """

    recut = False
    fields: MetadataFields | None = None
    tokens: TokenTable | None = None

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

    build = staticmethod(write_generation)  # returns the manifest

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        digest: str | None = None,
        mmap: bool = True,
        texts: Texts | None = None,
    ) -> Generation:
        """Open a built generation.

        Pass `digest`, the `Manifest.digest` that the store registered, to detect a folder that was replaced.

        Every file is compared with its SHA-256 before FAISS or NumPy read a byte of it: FAISS loads most
        flipped bits without an error.

        With `mmap`, keys and postings stay on disk until they are used, as the embeddings always do.

        `texts` returns the texts of rows. If another release's rules cut them into terms, they are cut again
        in memory (`recut`). Build the next generation then, because each opening takes as long.

        Raises:
            CorruptData: a file is missing or damaged; the message names it and the remedy.
            UnsupportedFormat: written by a release with another format, or other rules and no `texts`.
        """
        manifest = Manifest.read(folder)
        if digest is not None and manifest.digest != digest:
            raise CorruptData(
                f"{folder / MANIFEST_NAME}: of another generation than the store registered; "
                "build the generation again"
            )
        manifest.verify(folder)
        try:
            rows = np.load(folder / "rows.npy", allow_pickle=False)
            vectors = open_matrix(folder / "embeddings.npy")
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
        if f"{FIELDS_FOLDER}/{FIELDS_NAME}" in manifest.files:
            generation.fields = MetadataFields(folder / FIELDS_FOLDER, len(rows))
        if f"{TOKENS_FOLDER}/offsets.npy" in manifest.files:
            generation.tokens = TokenTable.load(folder / TOKENS_FOLDER, len(rows))
        generation._check()
        return generation

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.rows)

    def positions_of(self, rows: Int[np.ndarray, " some"]) -> Int64[np.ndarray, " some"]:
        """Return the position of each row in this generation, −1 for others."""
        rows = np.asarray(rows, np.int64)
        if len(self) == 0:
            return np.full(rows.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self.rows, rows), len(self) - 1)
        return np.where(self.rows[at] == rows, at, -1)

    @property
    def original(self) -> Generation:
        """Generation that `searched_with` copied; itself if it is no copy."""
        return self if self._original is None else self._original.original

    def searched_with(self, parameters: Mapping[str, int]) -> Generation:
        """Return a copy that searches the keys with other parameters (see `DenseIndex.using`)."""
        twin = copy.copy(self)
        twin.dense = self.dense.using(parameters)
        twin._original = self  # keeps the original alive, and with it the lease
        return twin

    def _check(self) -> None:
        """Refuse intact files that are inconsistent with each other."""
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
                    f"{self.folder / name}: does not fit the manifest ({amount(count, 'row')}, encoder_dim "
                    f"{manifest.encoder_dim}, key_dim {key_dim}); build the generation again"
                )


def _keyword_index(
    folder: Path,
    settings: Mapping[str, Any],
    rows: Int64[np.ndarray, " documents"],
    texts: Texts | None,
    *,
    mmap: bool,
) -> tuple[KeywordIndex, bool]:
    """Load the index in `folder`, or rebuild it if other rules split its texts; also return whether."""
    try:
        return KeywordIndex.load(folder, mmap=mmap), False
    except UnsupportedFormat:
        if texts is None:
            raise
    tokenizer = Tokenizer.from_settings(settings["tokenizer"], rebuild=True)
    return KeywordIndex.build(texts(rows), tokenizer=tokenizer, k1=settings["k1"], b=settings["b"]), True
