"""Collections of long documents, and their scores by plain tensors."""

from __future__ import annotations

import random

import numpy as np
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import PassageOptions
from dsearch.types import Document

OPTIONS = PassageOptions(tokens=16, overlap=4)
FOODS = "apple bread cheese dough egg flour grape honey ice juice kale lemon mango nut oat pear"
WORDS = FOODS.split()
QUERIES = ["apple number7", "mango pear kale", "honey", "bread and cheese", "lemon juice number3"]


def words(count: int, seed: int) -> str:
    chance = random.Random(seed)
    return " ".join(chance.choice([*WORDS, f"number{chance.randrange(30)}"]) for _ in range(count))


def some(seed: int = 0, count: int = 24) -> list[Document]:
    """Every third document is long."""
    return [
        Document(f"d{n}", words(40 + n if n % 3 == 0 else 8, 1000 * seed + n), WORDS[n % 16])
        for n in range(count)
    ]


def brute(collection, head: Head, states: torch.Tensor, texts: list[str] | None):
    """Plain tensors, document by document: dense [batch, heads, documents], keyword, and what was taken."""
    store, snapshot = collection.store, collection.snapshot
    rows = snapshot.rows(np.arange(snapshot.positions))
    first, passages = store.embeddings(rows), store.passages(rows)
    folded = head.fold(head.queries(states))
    dense, taken = [], []
    for row, embedding in zip(rows.tolist(), first, strict=True):
        every = np.concatenate(
            [embedding[None], passages[row].embeddings] if row in passages else [embedding[None]]
        )
        scores = folded @ torch.as_tensor(every).to(folded).T
        best = scores.max(-1)
        dense.append(best.values)
        taken.append(torch.as_tensor(every).to(folded)[best.indices])
    keyword = torch.zeros(len(states), len(rows))
    if texts is not None:
        keyword = torch.as_tensor(snapshot.all_keyword_scores(texts))
    return torch.stack(dense, -1), keyword.to(folded), torch.stack(taken, 2)


def reference(collection, head: Head, states: torch.Tensor, texts: list[str] | None):
    """Weights of all documents and the contexts."""
    dense, keyword, taken = brute(collection, head, states, texts)
    logits = (dense + head.keyword_weight[:, None] * keyword[:, None]) / head.temperature
    excluded = collection.snapshot.excluded
    if excluded is not None:
        logits = logits.masked_fill(torch.as_tensor(excluded), -torch.inf)
    heads = logits.softmax(-1)
    weights = (heads * head.mixture[:, None]).sum(1)
    values = head.values(taken)
    context = torch.einsum("h,bhd,bhdv->bv", head.mixture, heads, values)
    return weights, context, logits


def trained(dimension: int, heads: int = 1, seed: int = 3) -> Head:
    """Any head but the untrained one."""
    head, generator = Head(dimension, heads=heads), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name not in ("log_temperature", "hop_strength"):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return head


def states_of(collection, texts=QUERIES) -> torch.Tensor:
    return torch.as_tensor(collection.encoder.encode_queries(texts))
