"""Learning from the corpus alone: sentences of a document as queries for it (inverse cloze task).

Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering" (arXiv:1906.00300),
section 4. The sentence stays in its document here, since embeddings are stored once; so keywords have to be
left out, or training would learn that a query's words always stand in its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dsearch.corpus import inverse_cloze
from dsearch.engine import Collection
from dsearch.training.examples import Examples, make_examples
from dsearch.types import Document

_READ_AT_A_TIME = 4096


def examples_from_corpus(
    collection: Collection, *, per_document: int = 2, limit: int | None = None, seed: int = 0
) -> Examples:
    """Random sentences of the collection's documents, each an example for its own document.

    Args:
        collection: whose documents.
        per_document: sentences of each; fewer where it has fewer.
        limit: documents drawn at most; all when None.
        seed: of the choice of documents and sentences.

    Raises:
        InvalidRequest: no document has a sentence of its own.
    """
    snapshot = collection.snapshot
    visible = snapshot.visible()
    if limit is not None and limit < len(visible):
        visible = np.sort(np.random.default_rng(seed).choice(visible, limit, replace=False))
    position_of: dict[str, int] = {}

    def documents() -> Iterator[Document]:
        for start in range(0, len(visible), _READ_AT_A_TIME):
            positions = visible[start : start + _READ_AT_A_TIME]
            for position, document in zip(
                positions.tolist(), collection.store.documents(snapshot.rows(positions)), strict=True
            ):
                position_of[document.id] = position
                yield document

    pairs = list(inverse_cloze(documents(), per_document=per_document, seed=seed))
    relevant = [(np.array([position_of[id]], np.int64), np.ones(1, np.float32)) for _, id in pairs]
    examples = make_examples(collection, snapshot, [sentence for sentence, _ in pairs], relevant, {})
    return replace(examples, source="documents")
