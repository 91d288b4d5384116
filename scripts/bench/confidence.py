"""Calibration of "how likely is the first hit right", on queries that it was not fitted to.

    python scripts/bench/confidence.py DATA/cranfield DATA/scifact DATA/nfcorpus DATA/squad-sentences

Judgements: the folds of a collection with folds.json (its left-out pairs are taken out of rankings); train
fitted, dev scored, where there is a dev; five random folds of train otherwise. No test judgements of a
collection with training judgements are read. Of each collection at most --most queries are drawn. Search is
the untrained hybrid one. Columns: share of first hits that are right, bias-corrected calibration error,
AUROC, Brier score beside that of the base rate; shares that are refused ("nothing fits") of queries with an
answer, of nonsense, of foreign queries, and of queries of a collection of the same field (two are of
medicine), which may well have an answer. Foreign queries are everyday questions that the fit does not have,
twelve of twenty in other languages, and fifty queries of each collection of another field; the last row pools
them all.
The second table is fitted to queries made from the documents alone, which is why it shows words.
The collections of the folders' names must be indexed, whole. --record writes both tables anew;
their notes stay, and are to be read again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import numpy as np
from records import FOLDER, describe_machine, present_commit, read_record, today, write_record

from dsearch.attention.retrieval.head import Head
from dsearch.cli.commands.evaluate import read_judgements
from dsearch.corpus.made_queries import nonsense_queries
from dsearch.engine import Collection, SearchEngine
from dsearch.evaluation import auroc, brier_score, debiased_calibration_error, read_folds
from dsearch.evaluation.confidence import AnsweredQueries
from dsearch.training.confidence import calibration_of, ranked

FOLDS = 5
FIELD_OF = {"scifact": "medicine", "nfcorpus": "medicine"}
NONSENSE, OF_OTHERS = 100, 50
ENGLISH = 8  # of the everyday questions
RECORDS = ("confidence", "confidence-2")
REFUSALS = ("nonsense", "everyday", "other languages", "other fields", "foreign, all", "same field")
ELSEWHERE = (
    "what is the weather like in berlin tomorrow",
    "how much does a new washing machine cost",
    "funny costumes for carnival",
    "where can i adopt a dog near me",
    "tips for learning the guitar at home",
    "opening hours of the swimming pool",
    "new season of the cooking show",
    "second hand bicycles under 200 euros",
    "wo finde ich einen guten friseur",
    "wie lange muss ein ei kochen",
    "quel vin avec une raclette",
    "où garer sa voiture à paris",
    "qué película ver esta noche",
    "cuánto cuesta alquilar un piso",
    "dove comprare un divano usato",
    "wat eten we vanavond met kip",
    "где купить зимние ботинки",
    "怎么做红烧肉",
    "東京でおすすめのカフェ",
    "en yakın eczane nerede",
)


@dataclass(frozen=True)
class Judged:
    """Ranked queries of a collection, and the fold of each (−1: only fitted to)."""

    collection: Collection
    texts: list[str]
    answered: AnsweredQueries
    folds: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--most", type=int, default=1000, help="queries of a collection, drawn, at most")
    parser.add_argument("--record", action="store_true", help="write results/confidence.json and -2")
    arguments = parser.parse_args()
    tables: list[list[list[str]]] = []
    with SearchEngine(arguments.home, readonly=True) as engine:
        every = {
            folder.name: judged_queries(folder, engine.collection(folder.name), arguments.most)
            for folder in arguments.folders
        }
        names = ["collection", "queries", "right", "calibration error", "AUROC", "Brier"]
        names += ["of the base rate", "refused", *REFUSALS]
        for made in (False, True):
            print("fitted to queries made from the documents:" if made else "fitted to judgements:", "\n")
            print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
            rows: list[Measured] = []
            tables.append([])
            for name, judged in every.items():
                rows.append(measured_by(judged, outside_of(name, every), made=made))
                tables[-1].append(printed(rows[-1].cells(name)))
            tables[-1].append(printed(pooled(rows).cells("all")))
            print(flush=True)
    for record, table in zip(RECORDS, tables, strict=True) if arguments.record else ():
        before = read_record(FOLDER / f"{record}.json")
        measured = replace(
            before,
            rows=table,
            date=today(),
            commit=present_commit(),
            machine=describe_machine(),
            columns=names,
        )
        write_record(record, measured)


def printed(cells: list[str]) -> list[str]:
    """Print a row, and return it."""
    print("| " + " | ".join(cells) + " |", flush=True)
    return cells


@dataclass(frozen=True)
class Measured:
    """Estimates of queries with an answer, and the share of folds that refuse each query."""

    likely: np.ndarray
    right: np.ndarray
    refused: np.ndarray
    outside: dict[str, np.ndarray]

    def cells(self, name: str) -> list[str]:
        base = float(self.right.mean())
        cells = [
            str(len(self.right)),
            f"{base:.3f}",
            f"{debiased_calibration_error(self.likely, self.right > 0):.3f}",
            f"{auroc(self.likely, self.right > 0):.3f}",
            f"{brier_score(self.likely, self.right):.4f}",
            f"{base * (1 - base):.4f}",
            f"{self.refused.mean():.3f}",
        ]
        parts = self.outside | {
            "foreign, all": np.concatenate([self.outside[part] for part in REFUSALS[1:4]]),
        }
        return [name, *cells, *(f"{parts[part].mean():.3f}" if len(parts[part]) else "" for part in REFUSALS)]


def pooled(rows: Sequence[Measured]) -> Measured:
    """Every query counts the same."""
    outside = {part: np.concatenate([row.outside[part] for row in rows]) for part in rows[0].outside}
    likely, right, refused = (
        np.concatenate([getattr(row, name) for row in rows]) for name in ("likely", "right", "refused")
    )
    return Measured(likely, right, refused, outside)


def outside_of(name: str, every: Mapping[str, Judged]) -> dict[str, list[str]]:
    """Queries that are not the collection's own, by kind."""
    others: dict[bool, list[str]] = {True: [], False: []}
    for other, judged in every.items():
        if other != name:
            same = name in FIELD_OF and FIELD_OF[name] == FIELD_OF.get(other)
            others[same] += judged.texts[:OF_OTHERS]
    return {
        "nonsense": nonsense_queries(NONSENSE, seed=1),
        "everyday": list(ELSEWHERE[:ENGLISH]),
        "other languages": list(ELSEWHERE[ENGLISH:]),
        "other fields": others[False],
        "same field": others[True],
    }


def judged_queries(folder: Path, collection: Collection, most: int) -> Judged:
    splits = {path.stem for path in (folder / "qrels").glob("*.tsv")}
    parts = (
        [("train", -1), ("dev", 0)] if "dev" in splits else [("train" if "train" in splits else "test", 0)]
    )
    excluded = folder / "source_docs.tsv"
    texts, relevant, hidden, folds = [], [], [], []
    by_id = read_folds(folder / "folds.json") if (folder / "folds.json").exists() else None
    draw = np.random.default_rng(0)
    for split, fold in parts:
        read = read_judgements(folder, split, excluded if excluded.exists() else None)
        chosen = draw.permutation(len(read.queries))[:most]
        for number, place in enumerate(chosen.tolist()):
            query = read.queries[place]
            out = set(read.exclude.get(query.id, ()))
            ids = [id for id, grade in read.qrels[query.id].items() if grade > 0 and id not in out]
            rows = collection.store.rows_of(ids)
            if not rows:
                continue
            texts.append(query.text)
            relevant.append(collection.snapshot.positions_of(np.array(sorted(rows.values()), np.int64)))
            hidden.append(sorted(out))
            folds.append(fold if "dev" in splits else number % FOLDS if by_id is None else by_id[query.id])
    states = collection.encoder.encode_queries(texts)
    head = Head(states.shape[1]).eval()
    if any(hidden):
        parts_of = [
            ranked(
                collection.selected(collection.snapshot, None, out), head, [text], states[at : at + 1], [of]
            )
            for at, (text, of, out) in enumerate(zip(texts, relevant, hidden, strict=True))
        ]
        answered = AnsweredQueries(*(np.concatenate(column) for column in zip(*parts_of, strict=True)))
    else:
        answered = ranked(collection.snapshot, head, texts, states, relevant)
    return Judged(collection, texts, answered, np.array(folds))


def measured_by(judged: Judged, outside: Mapping[str, Sequence[str]], *, made: bool) -> Measured:
    collection, answered = judged.collection, judged.answered
    head = Head(collection.store.dimension).eval()
    texts = [text for part in outside.values() for text in part]
    states = collection.encoder.encode_queries(texts)
    far = ranked(collection.snapshot, head, texts, states, [np.empty(0, np.int64)] * len(texts)).rows
    likely, right, refused, refused_far = [], [], [], []
    if made:
        fitted = calibration_of(collection, head)
        assert fitted is not None
        likely, right = [fitted.right(answered.rows)], [answered.right]
        refused = [fitted.fits(answered.rows) < fitted.threshold]
        refused_far = [fitted.fits(far) < fitted.threshold]
    for fold in sorted({int(fold) for fold in judged.folds if fold >= 0} if not made else ()):
        at = judged.folds == fold
        rest = AnsweredQueries(answered.rows[~at], answered.right[~at], answered.right_scores)
        fitted = calibration_of(collection, head, rest)
        assert fitted is not None
        likely.append(fitted.right(answered.rows[at]))
        right.append(answered.right[at])
        refused.append(fitted.fits(answered.rows[at]) < fitted.threshold)
        refused_far.append(fitted.fits(far) < fitted.threshold)
    ends = np.cumsum([len(part) for part in outside.values()])[:-1]
    parts = dict(zip(outside, np.split(np.mean(refused_far, axis=0), ends), strict=True))
    return Measured(
        np.concatenate(likely), np.concatenate(right).astype(float), np.concatenate(refused), parts
    )


if __name__ == "__main__":
    main()
