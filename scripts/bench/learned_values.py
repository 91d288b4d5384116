"""Held-out gain of learned values, on small data sets whose rows are vectors: scikit-learn's own.

    python scripts/bench/learned_values.py

For each data set: stored values pooled by the untrained head, which is what `predict` answers before any
training; stored values by a trained head (objective value, which contrastive data have not); learned values
(objective context, or contrastive). Every number is of held-out documents, cross-fitted, and the gate's
verdict is on those against the untrained head. `W_V` is the relative size of the learned change of the value
projection.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dsearch.engine import Collection, SearchEngine
from dsearch.training.options import ValueOptions
from dsearch.training.values.examples import value_examples
from dsearch.training.values.finetune import TrainedValues, finetune_values
from dsearch.types import Document

EPOCHS, SEED = 20, 0
WAYS = {"stored, trained": "stored", "learned": "learned"}


def main() -> None:
    print("| data | documents | measure | untrained | stored, trained | learned | p | verdict | W_V |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, make in DATA.items():
        field, embeddings, documents, contrastive = make()
        with tempfile.TemporaryDirectory() as folder, SearchEngine(folder) as engine:
            collection = engine.create("data", dimension=embeddings.shape[1])
            collection.upsert(documents, embeddings)
            print(line(name, collection, field, contrastive=contrastive), flush=True)


def line(name: str, collection: Collection, field: str, *, contrastive: bool) -> str:
    """A row of the table."""
    trained = {way: run(collection, field, values, contrastive) for way, values in WAYS.items()}
    learned, stored = trained["learned"], trained["stored, trained"]
    report = learned.gate.slice("all")
    numbers = [report.before, None if contrastive else stored.gate.slice("all").after, report.after]
    cells = " | ".join("–" if number is None else f"{number:.4f}" for number in numbers)
    size = learned.head.value_delta.detach().norm().item() / learned.head.encoder_dim**0.5
    shown = learned.gate.measure
    if learned.before is not None and learned.after is not None and "accuracy" in learned.before:
        shown += f" (accuracy {learned.before['accuracy']:.4f} → {learned.after['accuracy']:.4f})"
    p = learned.gate.p_value
    p_value = "–" if p is None else f"{p:.4f}"
    verdict = learned.gate.verdict
    count = len(collection.snapshot.visible())
    return f"| {name} | {count} | {shown} | {cells} | {p_value} | {verdict} | {size:.3f} |"


def run(collection: Collection, field: str, values: str, contrastive: bool) -> TrainedValues:
    chosen: dict[str, Any] = {"epochs": EPOCHS, "seed": SEED, "values": values}
    chosen["contrastive"] = contrastive and values == "learned"
    return finetune_values(value_examples(collection, field), ValueOptions(**chosen))


Data = tuple[str, np.ndarray, list[Document], bool]


def digits() -> Data:
    """Classification: which digit an image shows."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return "digit", unit(images), [document(n, digit=str(one)) for n, one in enumerate(labels)], False


def diabetes() -> Data:
    """Regression: progression of a disease a year later."""
    from sklearn.datasets import load_diabetes

    rows, progression = load_diabetes(return_X_y=True)
    return (
        "progression",
        unit(rows),
        [document(n, progression=float(y)) for n, y in enumerate(progression)],
        False,
    )


def halves() -> Data:
    """Contrastive: the lower half of an image from its upper half."""
    from sklearn.datasets import load_digits

    images = load_digits().data
    lower = [document(n, value=[float(x) for x in row[32:]]) for n, row in enumerate(images)]
    return "value", unit(images[:, :32]), lower, True


DATA: dict[str, Callable[[], Data]] = {"digits": digits, "diabetes": diabetes, "digits, lower halves": halves}


def document(number: int, value: list[float] | None = None, **metadata: object) -> Document:
    return Document(f"d{number}", f"row {number}", value=value, metadata=dict(metadata))


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows around their mean, with a constant column that keeps their length, and of length 1 as stored."""
    centred = rows - rows.mean(0)
    constant = np.full((len(rows), 1), np.linalg.norm(centred, axis=1).mean())
    lifted = np.hstack([centred, constant])
    return (lifted / np.linalg.norm(lifted, axis=1, keepdims=True)).astype(np.float32)


if __name__ == "__main__":
    main()
