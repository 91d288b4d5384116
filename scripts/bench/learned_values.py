"""Held-out gain of learned values over stored ones, pooled by the same attention: objective `context`.

    python scripts/bench/learned_values.py
    python scripts/bench/learned_values.py --man /usr/share/man

Data: scikit-learn's digits (which digit an image shows) and diabetes (progression a year later); entries of
Python's documentation (function, class, …); with --man the sections of manual pages, at most 300 of each.
Every number is of held-out documents, cross-fitted, behind the untrained head. `W_V` is the relative size of
the learned change of the value projection.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dsearch.threads import set_threads

set_threads()

from dsearch.corpus import python_documents
from dsearch.encoder import DEFAULT_ENCODER, load_encoder
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.training.finetune.values import finetune_values
from dsearch.training.options import ValueOptions
from dsearch.training.values import value_examples
from dsearch.types import Document

SEED = 0
SECTIONS, PAGES, CHARACTERS = "123578", 300, 1500


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--man", type=Path, help="folder of manual pages, with man1, man2 and so on")
    parser.add_argument("--python", type=int, default=1500, help="entries of Python's documentation")
    arguments = parser.parse_args()
    print("| data | documents | measure | stored | learned | accuracy | p | verdict | epochs | W_V |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, rows, documents in (digits(), diabetes()):
        with tempfile.TemporaryDirectory() as folder, SearchEngine(folder) as engine:
            collection = engine.create("data", dimension=rows.shape[1])
            collection.upsert(documents, rows)
            show(name, collection, "value" if name == "diabetes" else "digit")
    encoder = load_encoder(DEFAULT_ENCODER)
    texts = {"kind": list(python_entries(arguments.python))}
    if arguments.man is not None:
        texts["section"] = list(manual_pages(arguments.man))
    for field, documents in texts.items():
        with tempfile.TemporaryDirectory() as folder, SearchEngine(folder, encoder=lambda: encoder) as engine:
            collection = engine.create("data", passages=PassageOptions(none=True))
            collection.ingest(documents)
            show({"kind": "Python entries", "section": "man pages"}[field], collection, field)


def show(name: str, collection: Collection, field: str) -> None:
    """Print a row of the table."""
    learned = finetune_values(value_examples(collection, field), ValueOptions(seed=SEED))
    report = learned.gate.slice("all")
    size = learned.head.value_delta.detach().norm().item() / learned.head.encoder_dim**0.5
    accuracy = "–"
    if learned.before is not None and learned.after is not None and "accuracy" in learned.before:
        accuracy = f"{learned.before['accuracy']:.3f} → {learned.after['accuracy']:.3f}"
    p_value = "–" if learned.gate.p_value is None else f"{learned.gate.p_value:.4f}"
    cells = [
        name,
        len(collection.snapshot.visible()),
        learned.gate.measure,
        f"{report.before:.4f}",
        f"{report.after:.4f}",
        accuracy,
        p_value,
        learned.gate.verdict,
        learned.epochs,
        f"{size:.3f}",
    ]
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def digits() -> tuple[str, np.ndarray, list[Document]]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    documents = [Document(f"d{n}", f"row {n}", metadata={"digit": str(one)}) for n, one in enumerate(labels)]
    return "digits", unit(images), documents


def diabetes() -> tuple[str, np.ndarray, list[Document]]:
    from sklearn.datasets import load_diabetes

    rows, progression = load_diabetes(return_X_y=True)
    return (
        "diabetes",
        unit(rows),
        [Document(f"d{n}", f"row {n}", value=float(y)) for n, y in enumerate(progression)],
    )


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows around their mean, with a constant column that keeps their length, and of length 1 as stored."""
    centred = rows - rows.mean(0)
    constant = np.full((len(rows), 1), np.linalg.norm(centred, axis=1).mean())
    lifted = np.hstack([centred, constant])
    return (lifted / np.linalg.norm(lifted, axis=1, keepdims=True)).astype(np.float32)


def python_entries(count: int) -> list[Document]:
    documents = python_documents()
    drawn = np.random.default_rng(SEED).permutation(len(documents))[:count]
    return [documents[n] for n in sorted(drawn)]


def manual_pages(folder: Path) -> Iterator[Document]:
    """Pages of each section, drawn by a seed; their texts without the marks of roff."""
    generator = np.random.default_rng(SEED)
    for section in SECTIONS:
        pages = (folder / f"man{section}").glob(f"*.{section}.gz")
        files = sorted(path for path in pages if not path.is_symlink())  # a link repeats a page
        count = 0
        for at in generator.permutation(len(files)):
            with gzip.open(files[at], "rt", errors="replace") as file:
                text = plain(file.read())
            if len(text) >= 200 and count < PAGES:  # a shorter one only names another page
                count += 1
                yield Document(f"{files[at].stem}", text[:CHARACTERS], metadata={"section": section})


def plain(roff: str) -> str:
    """Text of a manual page."""
    lines: list[str] = []
    for line in roff.splitlines():
        if re.match(r"\.(TH|Dd|Dt|Os|ds|de|if|ie|el|nr|tr|so|\\)|\.\.|'", line):
            continue
        line = re.sub(r"^\.[A-Za-z]{1,3}\b ?", "", line)
        line = re.sub(r"\\f[BIRP]|\\f\([A-Z]{2}|\\[&|^]|\\s[-+]?\d", "", line).replace(r"\-", "-")
        line = re.sub(r"\\\(..|\\\*\(..|\\e", " ", line).replace('"', "").strip()
        if line and not line.startswith("."):
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
