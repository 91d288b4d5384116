"""Damage to every kind of file that a home keeps, bits flipped and ends cut off: tests run a few hundred,
scripts/trials/soak_store.py thousands.

Whatever is done to a file, opening the home, `verify` or a question names it, or all answers stay what they
were. Left out are files that nothing is read from: the lock, what is there for people to read (README.md, the
schema, model.json), and SQLite's index of its log, which is memory.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
from support.fakes import HashingEncoder

from dsearch.engine import PassageOptions, SearchEngine
from dsearch.errors import DsearchError
from dsearch.store import Event, Impression
from dsearch.types import Document

NAME, ALIAS = "papers", "live"
WORDS = ["apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey"]
_UNREAD = (
    *("LOCK", "LOCK.holder", "README.md", "manifest.schema.json", "model.json"),
    *("documents.db-shm", "feedback.db-shm"),
)
_CUT = 5  # every so many trials the end of the file goes


def encoder() -> HashingEncoder:
    return HashingEncoder(8)


def documents(ids: range, word: str) -> list[Document]:
    """Every third is longer than a passage."""
    return [
        Document(
            f"d{n}",
            " ".join(["every", word, *(WORDS[(n + i) % 8] for i in range(40 if n % 3 == 0 else 5))]),
            metadata={"n": n % 4, "tags": [WORDS[n % 8]]},
            value=n / 2,
        )
        for n in ids
    ]


def fill(scratch: Path) -> tuple[Path, Path]:
    """A home with all kinds of files, as a kill leaves it and as it is when it was closed."""
    killed, closed = scratch / "killed", scratch / "closed"
    with SearchEngine(closed, encoder=encoder) as engine:
        papers = engine.create(NAME, passages=PassageOptions(tokens=16, overlap=4))
        papers.ingest(documents(range(18), "old"))
        papers.promote(papers.add_model(papers.head("v0"), {"note": "a head"}))
        papers.upsert(documents(range(6, 20), "new"))
        papers.refresh()
        papers.delete(["d1", "d8"])
        papers.upsert(documents(range(20, 23), "fresh"))
        engine.set_alias(ALIAS, NAME)
        page = Impression("q1", "apple", 1.0, ids=("d2", "d3"), weights=(0.6, 0.4))
        papers.feedback.record([page], [Event("e1", "q1", "key", "", "click", "d2", 1, 0.0, 2.0)])
        # By another process: closing a file that SQLite has open here would drop its locks.
        subprocess.run(["cp", "-a", str(closed), str(killed)], check=True)
    return killed, closed


def answers(home: Path) -> list[object]:
    """All that the collection says, and what it says of itself when everything is read again."""
    with SearchEngine(home, readonly=True, encoder=encoder) as engine:
        report = engine.verify(NAME)
        if not report.ok:
            raise Found
        papers = engine.collection(ALIAS)
        found: list[object] = [report, papers.store.list(limit=1000), papers.store.count()]
        for mode in ("dense", "keyword", "hybrid"):
            for filter in (None, {"n": {"lte": 1}}):
                result = papers.search("every apple", mode=mode, filter=filter, limit=100)
                found.append((result.stamp, [(hit.id, hit.text, hit.score) for hit in result.hits]))
        found.append(papers.store.facets("tags"))
        found.append([engine.names(), engine.aliases(), papers.live_model, papers.store.models()])
        found.append([str(page) for page in papers.feedback.pages()])
        return found


class Found(Exception):
    """`verify` says that something is damaged."""


def damages(
    scratch: Path, trials: int, *, seed: int = 1, only: tuple[str, ...] | None = None
) -> dict[str, int]:
    """Each file in turn; `only` those of these names. What was seen."""
    places = [
        (home, path.relative_to(home))
        for home in fill(scratch)
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in _UNREAD and (only is None or path.name in only)
        # Of what a kill leaves, the rest is as it is after closing.
        if home.name == "closed" or path.name.endswith("-wal")
    ]
    expected: dict[Path, list[object]] = {}
    for home in {home for home, _ in places}:
        whole = shutil.copytree(home, scratch / "whole" / home.name)
        expected[home] = answers(whole)
    generator = np.random.default_rng(seed)
    tally: Counter[str] = Counter()
    for trial in range(trials):
        home, name = places[trial % len(places)]
        copy = scratch / "copy"
        shutil.copytree(home, copy)
        what = damage(copy / name, generator, cut=(trial + trial // len(places)) % _CUT == _CUT - 1)
        try:
            same = answers(copy) == expected[home]
            assert same, f"{home.name}/{name}, {what}: another answer, and nobody said why"
            tally["changed nothing"] += 1
        except Found:
            tally["found by verify"] += 1
        except DsearchError:
            tally["refused"] += 1
        except AssertionError:
            raise
        except Exception as error:
            where = f"{home.name}/{name}, {what}"
            raise AssertionError(f"{where}: {error!r}, which is no word of ours") from error
        shutil.rmtree(copy)
    kinds = {name.name for _, name in places}
    return {"damages": trials, "kinds of files": len(kinds), **tally}


def damage(path: Path, generator: np.random.Generator, *, cut: bool) -> str:
    """Flip one bit, or cut the file off; what was done."""
    size = path.stat().st_size
    at = int(generator.integers(size))
    if cut:
        with path.open("r+b") as file:
            file.truncate(at)
        return f"cut to {at} of {size} bytes"
    content, bit = bytearray(path.read_bytes()), int(generator.integers(8))
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} of {size}"
