"""What the null slot gives, on held-out queries.

    python scripts/bench/values.py ../shared/data/cranfield --far ../shared/data/scifact --home index

Every fifth query of the BEIR folder loses the documents that answer it, which leaves queries that nothing
answers (near), beside those of another folder (--far). Told of the slot, cross-fitted: AUROC, expected
calibration error.

A collection of the folder's name in --home is copied rather than encoded again; nothing there is changed.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

from dsearch.corpus import BeirFolder, Problems
from dsearch.engine import Collection, SearchEngine
from dsearch.evaluation import read_qrels
from dsearch.training import examples_from_judgements, learn_null_slot


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a BEIR folder with judgements")
    parser.add_argument("--far", type=Path, help="another one, of which the queries are taken")
    parser.add_argument("--split", default="test")
    parser.add_argument("--home", type=Path, default=Path("index"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        indexed = arguments.home / arguments.folder.name
        if indexed.is_dir():
            shutil.copytree(indexed, Path(home) / arguments.folder.name)
        with SearchEngine(home) as engine:
            judged(engine, arguments.folder, arguments.far, arguments.split)


def judged(engine: SearchEngine, folder: Path, far: Path | None, split: str) -> None:
    beir = BeirFolder(folder)
    qrels = read_qrels(beir.qrels_path(split))
    queries = {query.id: query.text for query in beir.queries(Problems()) if query.id in qrels}
    collection = engine.collection_or_new(folder.name)
    collection.ingest(beir.documents(Problems()))  # what is there already is not encoded again
    gone = {document for query in list(qrels)[::5] for document, grade in qrels[query].items() if grade > 0}
    collection.delete(sorted(gone))
    left = {query: {d: g for d, g in of.items() if d not in gone} for query, of in qrels.items()}
    answered = {query: of for query, of in left.items() if max(of.values(), default=0) > 0}
    slot("near", collection, queries, answered, [queries[query] for query in qrels if query not in answered])
    if far is not None:
        texts = (query.text for query in BeirFolder(far).queries(Problems()))
        slot("far", collection, queries, answered, list(itertools.islice(texts, 100)))


def slot(
    name: str,
    collection: Collection,
    queries: Mapping[str, str],
    answered: Mapping[str, Mapping[str, float]],
    unanswerable: list[str],
) -> None:
    """Of the untrained head, which knows no query."""
    examples = examples_from_judgements(collection, queries, answered)
    head = collection.head("v0")
    states = collection.encoder.encode_queries(unanswerable)
    _, learned = learn_null_slot(head, examples, unanswerable, states)
    told = f"{learned.to_text()}; {learned.gain:+.3f} nats a query over their share"
    print(f"null slot, {name}: {told}", flush=True)


if __name__ == "__main__":
    main()
