"""Rounds of search → clicks → training → promotion, with users who look at the top first.

    python scripts/trials/simulate_clicks.py DATA/cranfield --home index --adversary
    python scripts/trials/simulate_clicks.py DATA/scifact --home index --epochs 10

A simulated user searches for a training query and gets the page that the live model gives. Position k is
looked at with probability k^−η; a document that is looked at is clicked with probability noise + (1 − noise)
· (2^grade − 1) / (2^highest − 1). True judgements make the clicks and, on other queries, the scores; training
and gate see clicks alone. Each row starts from the untrained collection and learns for itself:

    IPS, explore       propensities from the swapped positions of a share of the pages
    IPS                the same without swaps: a power law of steepness 1 is assumed
    naive              every click weighs the same
    true judgements    what training on the judgements of the same queries would give, once

The gate has the clicks of some keys that are named as trusted. With --adversary one more key sends a share of
all clicks, each on the last document of a page, for as many queries as it can. Reported is how many guard
queries (those held out, and titles of documents) get another first hit by it.

Folders with `folds.json`: users search for the queries of the first three folds, the others are held out;
else for those of qrels/train. The collection of the folder's name must be indexed; it is copied, not changed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from dsearch.threads import set_threads

set_threads()

import numpy as np
import uvicorn

from dsearch.attention.retrieval.head import Head
from dsearch.cli.commands.evaluate import read_judgements
from dsearch.corpus import BeirFolder, Problems
from dsearch.encoder import Encoder, EncoderIdentity, TextEncoder
from dsearch.engine import Collection, SearchEngine, make_run
from dsearch.engine.feedback import explored, impression_of
from dsearch.evaluation import Qrels, evaluate, mean_values, read_folds, without_pairs
from dsearch.service import create_app
from dsearch.store import Event, Impression
from dsearch.training import (
    ClickOptions,
    TrainingOptions,
    examples_from_feedback,
    examples_from_judgements,
    finetune_from_feedback,
    train_head,
)
from dsearch.types import AttentionSummary, Hit, Query, SearchResult, Stamp

PAGE = 10
MEASURE = "nDCG@10"
FOLDS_SEARCHED = 3
EVENTS_AT_ONCE = 2000
ADVERSARY = "adversary"
DEEP = 100
HTTP_SEARCHES = 40


@dataclass(frozen=True)
class World:
    """Judgements: of the queries that are searched for, and of those held out for scoring."""

    searched: list[Query]
    held_out: list[Query]
    qrels: Qrels
    exclude: dict[str, set[str]]


@dataclass(frozen=True)
class Arm:
    """One way to learn."""

    name: str
    correct: bool
    explore: float


def main() -> None:
    arguments = parsed()
    started = time.monotonic()
    arms = [
        Arm("IPS, explore", True, arguments.explore),
        Arm("IPS", True, 0.0),
        Arm("naive", False, 0.0),
    ]
    report: dict[str, Any] = {"options": {name: str(of) for name, of in vars(arguments).items()}, "rows": {}}
    with tempfile.TemporaryDirectory() as folder:
        world = read_world(arguments.folder)
        wanted = [] if arguments.adversary_only else arguments.rows.split(";")
        for arm in (arm for arm in arms if arm.name in wanted):
            report["rows"][arm.name] = run_arm(arm, world, arguments, Path(folder), report)
        report["http"] = over_http(world, arguments, Path(folder))
        if arguments.adversary or arguments.adversary_only:
            report["adversary"] = attack(arms[0], world, arguments, Path(folder))
    report["seconds"] = round(time.monotonic() - started, 1)
    print(as_text(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--searches", type=int, default=3000, help="a round")
    parser.add_argument("--steepness", type=float, default=1.5, help="η")
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--explore", type=float, default=0.1)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--trusted", type=int, default=10, help="of the keys, so many are trusted")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--objective", default="judged")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adversary", action="store_true")
    parser.add_argument("--adversary-share", type=float, default=0.01)
    parser.add_argument("--adversary-only", action="store_true")
    parser.add_argument("--rows", default="IPS, explore;IPS;naive", help="which, with ; between them")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def read_world(folder: Path) -> World:
    pairs, folds = folder / "source_docs.tsv", folder / "folds.json"
    judged = read_judgements(folder, "test", pairs if pairs.is_file() else None)
    exclude = {query: set(ids) for query, ids in judged.exclude.items()}
    queries = {query.id: query for query in BeirFolder(folder).queries(Problems())}
    test = without_pairs(judged.qrels, exclude)
    if folds.is_file():
        fold_of = read_folds(folds)
        searched = [queries[id] for id in test if fold_of[id] < FOLDS_SEARCHED]
        held_out = [queries[id] for id in test if fold_of[id] >= FOLDS_SEARCHED]
        return World(searched, held_out, test, exclude)
    assert judged.training is not None, f"{folder} has neither folds.json nor qrels/train.tsv"
    searched = [queries[id] for id in judged.training]
    held_out = [queries[id] for id in test if id not in judged.training]
    return World(searched, held_out, {**judged.training, **test}, exclude)


# ---- one way to learn, round after round


def run_arm(
    arm: Arm, world: World, arguments: argparse.Namespace, folder: Path, report: dict[str, Any]
) -> list[dict[str, Any]]:
    rows = []
    with copied(arguments, folder, arm.name) as engine:
        collection = engine.collection(arguments.folder.name)
        users = Users(collection, world, arguments)
        rows.append({"round": 0, "model": "v0", **scores(collection, world, users.states, "v0")})
        if "true judgements" not in report["rows"]:
            report["rows"]["true judgements"] = [by_judgements(collection, world, arguments)]
        for number in range(1, arguments.rounds + 1):
            users.search(arm.explore)
            row = learn(collection, arm, arguments)
            live = collection.live_model
            row["as_trained"] = scores(collection, world, users.states, row["trained"])
            rows.append(
                {"round": number, "model": live, **scores(collection, world, users.states, live), **row}
            )
            print(f"{arm.name}: {rows[-1]}", file=sys.stderr, flush=True)
    return rows


def learn(collection: Collection, arm: Arm, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on everything so far; promote what the trusted clicks let pass."""
    trusted_keys = {f"key{n}" for n in range(arguments.trusted)}
    started = time.monotonic()
    source = examples_from_feedback(collection, correct=arm.correct, without=trusted_keys)
    trusted = examples_from_feedback(
        collection, correct=arm.correct, propensities=source.propensities, only=trusted_keys
    )
    live = collection.live_model
    trained = finetune_from_feedback(
        source,
        trusted,
        options_of(arguments),
        live=None if live == "v0" else collection.head(live),
    )
    version = collection.add_model(trained.head, trained.record, parent=live)
    if trained.gate.passed:
        collection.promote(version)
    return {
        "trained": version,
        "gate": trained.gate.verdict,
        "reason": trained.gate.reason,
        "clicks": source.graded.clicks,
        "steepness": round(source.propensities.steepness, 3),
        "theta": source.propensities.to_dict()["values"],
        "seconds": round(time.monotonic() - started, 1),
    }


def options_of(arguments: argparse.Namespace) -> TrainingOptions:
    return TrainingOptions(
        objective=arguments.objective,
        epochs=arguments.epochs,
        learning_rate=arguments.learning_rate,
        seed=arguments.seed,
    )


def by_judgements(collection: Collection, world: World, arguments: argparse.Namespace) -> dict[str, Any]:
    texts = {query.id: query.text for query in world.searched}
    qrels = {query.id: world.qrels[query.id] for query in world.searched}
    examples = examples_from_judgements(collection, texts, qrels)
    head = train_head(examples, options_of(arguments))
    return {"round": 0, "model": "", **scores(collection, world, {}, "v0", head)}


def scores(
    collection: Collection, world: World, states: dict[str, np.ndarray], model: str, head: Head | None = None
) -> dict[str, float]:
    """nDCG@10 by the true judgements: of queries that nobody clicked on, of those that users search for."""
    found = {}
    for name, queries in (("held_out", world.held_out), ("searched", world.searched)):
        given = np.stack([states[query.id] for query in queries]) if states else None
        run = make_run(
            collection,
            queries,
            states=given,
            head=head or collection.head(model),
            depth=PAGE,
            exclude=world.exclude,
        )
        qrels = {query.id: world.qrels[query.id] for query in queries}
        found[name] = round(mean_values(evaluate(run, qrels, [MEASURE], world.exclude))[MEASURE], 4)
    return found


class Remembering:
    """The default encoder, which encodes each query once: rounds, arms and attacks ask for the same ones."""

    def __init__(self) -> None:
        self._encoder: TextEncoder = Encoder.load()
        self._known: dict[str, np.ndarray] = {}

    @property
    def identity(self) -> EncoderIdentity:
        return self._encoder.identity

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        if missing:
            self._known |= zip(missing, self._encoder.encode_queries(missing), strict=True)
        return np.stack([self._known[text] for text in texts])

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        return self._encoder.encode_documents(texts)

    def embed(self, texts: Sequence[str], role: Literal["query", "document"]) -> Any:
        return self._encoder.embed(texts, role)


@cache
def remembering() -> Remembering:
    """One for every engine of this run."""
    return Remembering()


class copied:
    """An engine over a copy of the collection."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, name: str):
        self._home = folder / name.replace(", ", "-").replace(" ", "-")
        self._from = arguments.home / arguments.folder.name
        self._name = arguments.folder.name

    def __enter__(self) -> SearchEngine:
        shutil.rmtree(self._home, ignore_errors=True)
        self._home.mkdir()
        shutil.copytree(self._from, self._home / self._name)
        self._engine = SearchEngine(self._home, encoder=remembering)
        collection = self._engine.collection(self._name)
        if collection.live_model != "v0":
            collection.promote("v0")  # what the home has learned elsewhere has no part
        return self._engine

    def __exit__(self, *error: object) -> None:
        self._engine.close()
        shutil.rmtree(self._home)


# ---- those who search and click


class Users:
    """Simulated users of one collection, honest but for their impatience; and perhaps one who is not."""

    def __init__(self, collection: Collection, world: World, arguments: argparse.Namespace, seed: int = 0):
        self._collection, self._world, self._arguments = collection, world, arguments
        self._draw = np.random.default_rng([arguments.seed, seed])
        self._coins = random.Random(f"{arguments.seed} {seed}")
        self._searches = 0
        queries = [*world.searched, *world.held_out]
        embedded = collection.encoder.encode_queries([query.text for query in queries])
        self.states = {query.id: state for query, state in zip(queries, embedded, strict=True)}
        highest = max(grade for query in world.searched for grade in world.qrels[query.id].values())
        self._highest = 2**highest - 1

    def search(self, explore: float, attacked: int = 0) -> None:
        """One round of searches, by queries drawn alike; everything that was clicked is recorded.

        With `attacked` an adversary clicks the hit of that rank as well.
        """
        arguments, world = self._arguments, self._world
        pages, stamp = self._pages(PAGE), self._stamp()
        looked_at = np.arange(1, PAGE + 1) ** -arguments.steepness
        impressions: list[Impression] = []
        events: list[Event] = []
        for _ in range(arguments.searches):
            self._searches += 1
            query = world.searched[int(self._draw.integers(len(world.searched)))]
            key = f"key{int(self._draw.integers(arguments.keys))}"
            hits, drawn = explored(pages[query.id], explore, self._coins)
            grades = np.array([world.qrels[query.id].get(hit.id, 0.0) for hit in hits])
            attraction = (2 ** np.maximum(grades, 0) - 1) / self._highest
            chance = looked_at[: len(hits)] * (arguments.noise + (1 - arguments.noise) * attraction)
            clicked = np.flatnonzero(self._draw.random(len(hits)) < chance)
            if len(clicked) == 0:
                continue
            result = self._result(query, hits, stamp)
            shown = impression_of(result, f"s{self._searches}", key=key, drawn=drawn, shown_s=self._searches)
            impressions.append(shown)
            events += [self._click(shown, at + 1, key) for at in clicked.tolist()]
        if attacked:
            self._attack(len(events), impressions, events, attacked)
        for start in range(0, len(events), EVENTS_AT_ONCE):
            self._collection.feedback.record(
                impressions if start == 0 else [], events[start : start + EVENTS_AT_ONCE]
            )

    def _attack(self, honest: int, impressions: list[Impression], events: list[Event], depth: int) -> None:
        """A share of all clicks: the last document of pages so deep, query after query."""
        share = self._arguments.adversary_share
        wanted = round(honest * share / (1 - share))
        pages, stamp = self._pages(depth), self._stamp()
        for number in range(wanted):
            self._searches += 1
            query = self._world.searched[number % len(self._world.searched)]
            hits = pages[query.id]
            shown = impression_of(
                self._result(query, hits, stamp), f"s{self._searches}", key=ADVERSARY, shown_s=self._searches
            )
            impressions.append(shown)
            events.append(self._click(shown, len(hits), ADVERSARY))

    def _pages(self, depth: int) -> dict[str, list[Hit]]:
        states = np.stack([self.states[query.id] for query in self._world.searched])
        head = self._collection.head(self._collection.live_model)
        run = make_run(
            self._collection,
            self._world.searched,
            states=states,
            head=head,
            depth=depth,
            exclude=self._world.exclude,
        )
        return {
            query: [Hit(rank, id, 0.0, score, "", "") for rank, (id, score) in enumerate(found, 1)]
            for query, found in run.items()
        }

    def _stamp(self) -> Stamp:
        return Stamp(1, self._collection.live_model, self._collection.store.sequence)

    def _result(self, query: Query, hits: list[Hit], stamp: Stamp) -> SearchResult:
        return SearchResult(query.text, hits, stamp, AttentionSummary(len(hits), 0.0), 0.0)

    def _click(self, shown: Impression, position: int, key: str) -> Event:
        return Event(
            event_id=f"{shown.query_id}-{position}",
            query_id=shown.query_id,
            key=key,
            client_id="",
            action="click",
            object_id=shown.ids[position - 1],
            position=position,
            time_s=shown.shown_s,
            received_s=shown.shown_s,
        )


# ---- a few of them over the real service


def over_http(world: World, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Search, click and send feedback to a server; what it stored is what it showed."""
    with copied(arguments, folder, "http") as engine, socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(create_app(engine, explore=0.2), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
        address = f"{origin}/v1/collections/{arguments.folder.name}"
        try:
            while not ready(origin):
                time.sleep(0.2)
            started = time.monotonic()
            shown: dict[str, list[str]] = {}
            for query in world.searched[:HTTP_SEARCHES]:
                page = asked(f"{address}/search", {"query": query.text})
                ids = [hit["id"] for hit in page["hits"]]
                shown[page["query_id"]] = ids
                best = max(ids, key=lambda id, of=query.id: world.qrels[of].get(id, 0.0))
                event = {"query_id": page["query_id"], "action_name": "click", "object_id": best}
                asked(f"{address}/feedback", [event])
            seconds = time.monotonic() - started
        finally:
            server.should_exit = True
            thread.join()
        pages = list(engine.collection(arguments.folder.name).feedback.pages())
        same = sum(list(page.impression.ids) == shown[page.impression.query_id] for page in pages)
        drawn = sum(page.impression.pair is not None for page in pages)
    return {"searches": len(shown), "stored": same, "left_to_a_coin": drawn, "seconds": round(seconds, 1)}


def ready(origin: str) -> bool:
    try:
        with urllib.request.urlopen(f"{origin}/readyz", timeout=60) as answer:
            return answer.status == 200
    except urllib.error.HTTPError:
        return False


def asked(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", "X-Timeout-Ms": "30000"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


# ---- one who wants to do harm


def attack(arm: Arm, world: World, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """First hits of guard queries with the adversary's clicks and without, all else equal.

    Two attacks: on the last document of pages as deep as feedback remembers, and on the last of ordinary
    pages, where others click now and then, too. Both once more without caps, quorum and clip.
    """
    found: dict[str, dict[str, str]] = {}
    verdicts: dict[str, str] = {}
    share = 0.0
    bare = ClickOptions(quorum=1, key_share=1.0, clip=1e6)
    for name, depth, options in (
        ("without", 0, None),
        ("deep", DEEP, None),
        ("page", PAGE, None),
        ("without, no caps", 0, bare),
        ("deep, no caps", DEEP, bare),
        ("page, no caps", PAGE, bare),
    ):
        with copied(arguments, folder, "attack") as engine:
            collection = engine.collection(arguments.folder.name)
            users = Users(collection, world, arguments)
            users.search(arm.explore, depth)
            trusted_keys = {f"key{n}" for n in range(arguments.trusted)}
            source = examples_from_feedback(collection, options=options, without=trusted_keys)
            trusted = examples_from_feedback(collection, propensities=source.propensities, only=trusted_keys)
            training = options_of(arguments)
            trained = finetune_from_feedback(source, trusted, training)
            verdicts[name] = trained.gate.verdict
            keys = [event.key for page in collection.feedback.pages() for event in page.events]
            share = max(share, keys.count(ADVERSARY) / len(keys))
            guards = [*world.held_out, *titles(collection)]
            run = make_run(collection, guards, head=trained.head, depth=1, exclude=world.exclude)
            found[name] = {query: hits[0][0] if hits else "" for query, hits in run.items()}
    held = {query.id for query in world.held_out}

    def changed(name: str) -> dict[str, int]:
        base = found["without, no caps" if "no caps" in name else "without"]
        other = [query for query in base if found[name][query] != base[query]]
        return {
            "held_out": sum(query in held for query in other),
            "titles": sum(query not in held for query in other),
        }

    return {
        "share_of_clicks": round(share, 4),
        "guards": {"held_out": len(held), "titles": len(found["without"]) - len(held)},
        "changed_first_hits": {name: changed(name) for name in found if not name.startswith("without")},
        "gate": verdicts,
    }


def titles(collection: Collection, most: int = 1000) -> list[Query]:
    """Titles of documents as queries, or their first words."""
    snapshot = collection.snapshot
    visible = snapshot.visible()
    drawn = np.sort(np.random.default_rng(0).permutation(visible)[:most])
    documents = collection.store.documents(snapshot.rows(drawn))
    texts = {one.id: one.title or " ".join(one.text.split()[:12]) for one in documents}
    return [Query(f"title of {id}", text) for id, text in texts.items() if text.strip()]


def as_text(report: dict[str, Any]) -> str:
    lines = [f"{MEASURE} by true judgements, held-out queries (queries that users search for)"]
    rounds = max((len(rows) for rows in report["rows"].values()), default=0)
    lines.append(f"{'':<18}" + "".join(f"{'round ' + str(n):>18}" for n in range(rounds)))
    for name, rows in report["rows"].items():
        lines.append(
            f"{name:<18}" + "".join(f"{row['held_out']:>9.4f} ({row['searched']:.4f})" for row in rows)
        )
    for name, rows in report["rows"].items():
        if len(rows) > 1:
            last = rows[-1]
            lines.append(
                f"{name}: live {last['model']}, gate {', '.join(row['gate'] for row in rows[1:])}; "
                f"{last['clicks']} clicks; steepness {last['steepness']}"
            )
    lines.append(f"over HTTP: {json.dumps(report['http'])}")
    if "adversary" in report:
        lines.append(f"adversary: {json.dumps(report['adversary'])}")
    lines.append(f"{report['seconds']} s")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
