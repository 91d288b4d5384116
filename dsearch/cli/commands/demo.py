"""`dsearch demo`: index, search, learn from and serve the documentation of Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from dsearch.cli import options
from dsearch.cli.engine import terminal_observer
from dsearch.cli.session import ProgressBars, opened_engine, say
from dsearch.errors import amount

if TYPE_CHECKING:
    from dsearch.config import Settings
    from dsearch.corpus import PythonCorpus
    from dsearch.engine import Collection, SearchEngine
    from dsearch.engine.options import SearchArguments

COLLECTION = "python"
SENTENCES = 60  # held out, to show what training changes
DOCUMENTS_DRAWN = 20 * SENTENCES  # many have no sentence that stands alone, or training learned it
EXAMPLES_SHOWN = 3
HITS_SHOWN = 3
DEPTH = 100  # below it a document has no place
EXAMPLE = "split a path into folder and file name"


def demo(
    home: options.HomeFolder = None,
    everything: Annotated[bool, typer.Option("--all", help="Index private names too.")] = False,
    serve: Annotated[
        bool, typer.Option(help="Serve at the end; --no-serve stops after the evaluation.")
    ] = True,
    host: Annotated[str | None, typer.Option(help="Address to bind to [default: 127.0.0.1].")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to bind to [default: 8080].", min=0, max=65535)
    ] = None,
    threads: options.Threads = None,
) -> None:
    """Index, search, fine-tune and serve the documentation of this Python: nothing is downloaded."""
    from dsearch.config import load_settings
    from dsearch.corpus import python_corpus

    settings = load_settings(home=home, host=host, port=port, threads=threads)  # tasks open that home
    say("1. Reading the docstrings of the standard library")
    corpus = python_corpus(public_only=not everything)
    queries = f"{len(corpus.queries)} summary lines serve as queries"
    say(f"   {amount(len(corpus.documents), 'document')}; {queries}")
    name = f"{COLLECTION}-all" if everything else COLLECTION
    stays = (
        "this works in the home itself and serves it: end that server first, or show it in a home of its "
        "own: dsearch demo --home FOLDER --port 0"
    )
    with opened_engine(home, readonly=False, stays=stays, threads=threads) as (engine, _):
        _show_demo(engine, name, corpus, settings, serve=serve)


def _show_demo(
    engine: SearchEngine, name: str, corpus: PythonCorpus, settings: Settings, *, serve: bool
) -> None:
    from dsearch.cli.commands.evaluate import Judgements, compare_systems
    from dsearch.cli.commands.index import calibrate

    say("2. Indexing: every document is encoded once")
    collection = engine.collection_or_new(name)
    with ProgressBars() as on_progress:
        report = collection.ingest(corpus.documents, on_progress)
    say(f"   {report.encoded} encoded, {report.unchanged} already there, {report.elapsed_s:.0f} s")
    calibrate(collection)
    say("3. Searching")
    say(f"   “{EXAMPLE}”")
    for hit in collection.search(EXAMPLE, limit=HITS_SHOWN).hits:
        say(f"      {hit.weight:6.1%}  {hit.id}")
    say("4. Fine-tuning on the corpus alone: sentences as queries for the text they stand in")
    version = _train_once(collection)
    show_changes(collection, version)
    say("5. Evaluating on the summary lines, before and after")
    judged = Judgements(corpus.queries, corpus.qrels, None, {})
    typer.echo(compare_systems(collection, judged, dense_trained=True).to_text())
    if not serve:
        return
    from dsearch.cli.commands.serve import in_url, serve_engine

    address = f"http://{in_url(settings.host)}:{settings.port}"
    say(f"6. Serving at {address}. Try the page, or:")
    say(
        f"   curl -s {address}/v1/collections/{name}/search -H 'content-type: application/json' "
        f"""-d '{{"query": "{EXAMPLE}", "limit": 3}}'"""
    )
    serve_engine(engine, settings)


@dataclass(frozen=True, slots=True)
class _Ranking:
    place: int | None  # of the right document; None if it is not among the first `DEPTH`
    first: str  # the first hits, with their shares of attention

    @property
    def share(self) -> float:
        """1/place, the value that evaluation gives it."""
        return 0.0 if self.place is None else 1 / self.place


def show_changes(collection: Collection, version: str) -> None:
    """Show the hits before and after training, for sentences that training has not learned from.

    The rule: of `SENTENCES` sentences that were drawn for this and not for training, those whose own document
    gained most of 1/place, and the one whose document lost most of it; where none fell, the lowest of those
    that stayed. A document that is not among the first `DEPTH` has no place, and counts as 0.
    """
    pairs = held_out_sentences(collection)
    if not pairs:
        return
    before, after = (_rankings(collection, pairs, model) for model in ("v0", version))
    rows = sorted(zip(pairs, before, after, strict=True), key=lambda row: row[1].share - row[2].share)
    rose = [row for row in rows if row[1].share < row[2].share]
    fell = [row for row in rows if row[1].share > row[2].share]
    stayed = sorted((row for row in rows if row[1].share == row[2].share), key=lambda row: row[1].share)
    say(
        f"   What training changed, by {len(pairs)} sentences that it has not learned from, each searched by "
        "meaning\n   alone, since its own words would give its document away: "
        f"{len(rose)} find their document higher, {len(fell)} lower, {len(stayed)} at the same place."
    )
    for title, examples in (
        (f"Those that rose most, by 1/place (0 beyond place {DEPTH}):", rose[:EXAMPLES_SHOWN]),
        ("The one that fell most:" if fell else "One that did not rise:", [*fell[-1:], *stayed][:1]),
    ):
        if examples:
            say(f"   {title}")
        for (text, id), old, new in examples:
            say(f"   “{text if len(text) <= 90 else text[:89] + '…'}”")
            say(f"      its document: {id}, {move_in_words(old.place, new.place)}")
            say(f"      before: {old.first}")
            say(f"      after:  {new.first}")


def held_out_sentences(collection: Collection) -> list[tuple[str, str]]:
    """Sentences that training has not learned from, each with its document's id."""
    from dsearch.training import sentences_of_corpus

    learned = set(sentences_of_corpus(collection).texts)
    drawn = sentences_of_corpus(collection, per_document=1, limit=DOCUMENTS_DRAWN, seed=1)
    pairs = [
        (text, collection.ids_at(drawn.snapshot, positions[None])[0][0])
        for text, (positions, _) in zip(drawn.texts, drawn.relevant, strict=True)
        if text not in learned
    ]
    return Random(1).sample(pairs, min(SENTENCES, len(pairs)))


def _rankings(collection: Collection, pairs: Sequence[tuple[str, str]], model: str) -> list[_Ranking]:
    rankings: list[_Ranking] = []
    texts = [text for text, _ in pairs]
    options: SearchArguments = {"limit": DEPTH, "model": model, "mode": "dense", "operators": False}
    for start in range(0, len(pairs), 32):
        part = slice(start, start + 32)
        results = collection.search_batch(texts[part], **options)
        for result, (_, id) in zip(results, pairs[part], strict=True):
            place = next((hit.rank for hit in result.hits if hit.id == id), None)
            first = (f"{hit.weight:.0%} {hit.id}" for hit in result.hits[:HITS_SHOWN])
            rankings.append(_Ranking(place, " · ".join(first)))
    return rankings


def move_in_words(old: int | None, new: int | None) -> str:
    """Say the place of a document before and after."""
    missing = f"not among the first {DEPTH}"
    if old is None:
        return missing if new is None else f"{missing} → place {new}"
    return f"place {old} → {missing if new is None else new}"


def _train_once(collection: Collection) -> str:
    """Train, unless a head that was trained on this very corpus stands; return the version."""
    from dsearch.jobs import TrainingJob
    from dsearch.training import run_training, sentences_of_corpus

    digest = sentences_of_corpus(collection).digest
    for model in collection.store.models():
        if model.record.get("data_sha256") == digest:
            say(f"   {model.version} was trained on this corpus before and is used again")
            return model.version
    job = TrainingJob(self_supervised=True)
    with ProgressBars() as on_progress:
        learned = run_training(collection, job, terminal_observer(on_progress))
    registered, trained = learned.register(collection, job), learned.result
    live = "not live" if registered.live is None else "live"
    say(f"   {registered.model} in {trained.record['seconds']:.0f} s, {live}: {trained.reason}")
    say(f"   {registered.sentence}")
    return registered.version
