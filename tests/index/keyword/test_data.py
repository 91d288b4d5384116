"""Arrays of a keyword index: counted, cut, saved, and refused where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsearch.errors import CorruptData, InvalidRequest
from dsearch.index import Tokenizer
from dsearch.index.keyword import data as module
from dsearch.index.keyword.data import KEYWORD_FILES, KeywordData, Sequences, holds

TEXTS = ["one two three", "the two", "", "three three four one", "one"]


def made(texts: list[str] = TEXTS) -> KeywordData:
    return KeywordData.of(texts, Tokenizer.for_language("english"), k1=1.2, b=0.75)


def postings(data: KeywordData) -> dict[str, list[int]]:
    """Documents of each term."""
    return {
        term: data.positions[data.offsets[at] : data.offsets[at + 1]].tolist()
        for at, term in enumerate(data.vocabulary[: data.terms])
    }


def test_terms_and_silent_words_are_counted() -> None:
    data = made()
    assert (data.documents, data.terms) == (5, 4)
    assert data.average_length == (3 + 1 + 0 + 4 + 1) / 5
    assert postings(data) == {"one": [0, 3, 4], "two": [0, 1], "three": [0, 3], "four": [3]}
    assert data.vocabulary[4:] == [" the"]  # a silent word
    symbols = [
        [data.vocabulary[at] for at in data.sequences.symbols[start:end]]
        for start, end in zip(data.sequences.starts, data.sequences.starts[1:], strict=False)
    ]
    assert symbols == [
        ["one", "two", "three"],
        [" the", "two"],
        [],
        ["three", "three", "four", "one"],
        ["one"],
    ]
    empty = made([])
    assert (empty.documents, empty.average_length, empty.terms) == (0, 0.0, 0)


@pytest.mark.parametrize("block", [1, 2, 1 << 22])
@pytest.mark.parametrize(("start", "stop"), [(0, 5), (0, 2), (1, 4), (3, 5), (2, 3), (2, 2)])
def test_a_part_has_its_documents_and_the_whole_vocabulary(
    monkeypatch: pytest.MonkeyPatch, start: int, stop: int, block: int
) -> None:
    monkeypatch.setattr(module, "_POSTINGS_AT_A_TIME", block)
    whole, part = made(), made().part(start, stop)
    assert part.documents == stop - start
    assert part.vocabulary == whole.vocabulary
    expected = {
        term: [at - start for at in found if start <= at < stop] for term, found in postings(whole).items()
    }
    assert postings(part) == expected
    weights = dict(zip(_pairs(whole), whole.parts.tolist(), strict=True))
    assert part.parts.tolist() == [weights[term, at + start] for term, at in _pairs(part)]
    assert part.sequences.starts[0] == 0
    first = whole.sequences.starts[start : stop + 1]
    assert part.sequences.starts.tolist() == (first - first[0]).tolist()
    assert part.sequences.symbols.tolist() == whole.sequences.symbols[first[0] : first[-1]].tolist()


def _pairs(data: KeywordData) -> list[tuple[str, int]]:
    return [(term, at) for term, found in postings(data).items() for at in found]


@pytest.mark.parametrize("mmap", [False, True])
def test_it_is_read_as_it_was_saved(tmp_path: Path, mmap: bool) -> None:
    data = made()
    data.save(tmp_path / "keyword")
    assert {path.name for path in (tmp_path / "keyword").iterdir()} == set(KEYWORD_FILES)
    read = KeywordData.load(tmp_path / "keyword", mmap=mmap)
    assert read.settings() == data.settings()
    assert read.vocabulary == data.vocabulary
    for name in ("offsets", "positions", "parts"):
        assert np.array_equal(getattr(read, name), getattr(data, name))
    assert np.array_equal(read.sequences.symbols, data.sequences.symbols)
    assert np.array_equal(read.sequences.starts, data.sequences.starts)


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        np.save(folder / f"{name}.npy", change(np.load(folder / f"{name}.npy")))

    return damage


def vocabulary(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "vocabulary.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


def setting(name: str, value: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "settings.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return damage


NAMES = ("offsets", "positions", "parts", "starts", "symbols")
DAMAGE: dict[str, Callable[[Path], None]] = {
    **{f"{name} cut": array(name, lambda numbers: numbers[:-1]) for name in NAMES},
    **{f"{name} longer": array(name, lambda numbers: np.append(numbers, numbers[-1:])) for name in NAMES},
    **{f"{name} of another type": array(name, lambda numbers: numbers.astype(np.float64)) for name in NAMES},
    "a word twice": vocabulary(lambda words: [*words[:-1], words[0]]),
    "fewer words than terms": vocabulary(lambda words: words[:3]),
    "more terms": setting("terms", 5),
    "more documents": setting("documents", 6),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("name", DAMAGE)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, name: str, mmap: bool) -> None:
    made().save(tmp_path)
    DAMAGE[name](tmp_path)
    with pytest.raises(CorruptData, match=r"not a keyword index \(.*\); build the generation again"):
        KeywordData.load(tmp_path, mmap=mmap)


@pytest.mark.parametrize("name", KEYWORD_FILES)
def test_a_file_that_is_gone_is_named(tmp_path: Path, name: str) -> None:
    made().save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CorruptData, match=name):
        KeywordData.load(tmp_path)


@pytest.mark.parametrize(("k1", "b"), [(0.0, 0.5), (-1.0, 0.5), (float("inf"), 0.5), (1.2, -0.1), (1.2, 1.1)])
def test_weightings_out_of_range_are_refused(k1: float, b: float) -> None:
    with pytest.raises(InvalidRequest, match="k1=" if b == 0.5 else "b="):
        KeywordData.of(TEXTS, Tokenizer.for_language("english"), k1=k1, b=b)
    for edge in (0.0, 1.0):
        KeywordData.of(TEXTS, Tokenizer.for_language("english"), k1=1e-6, b=edge)


@pytest.mark.parametrize("block", [1, 4, 1 << 20])
def test_phrases_are_found_within_documents_alone(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "_SYMBOLS_AT_A_TIME", block)
    documents = [[1, 2, 3], [2, 3], [], [3, 1, 2], [1, 1, 2, 3, 1], [2]]
    starts = np.cumsum([0, *map(len, documents)])
    sequences = Sequences(starts, np.array([at for one in documents for at in one], np.int32))
    for phrase in ([1], [1, 2], [2, 3], [3, 1], [1, 2, 3], [2, 2], [1, 2, 3, 1, 1]):
        expected = [holds(list(map(str, one)), list(map(str, phrase))) for one in documents]
        assert sequences.holding(phrase, np.arange(6)).tolist() == expected
        some = np.array([4, 0, 2, 4])
        assert sequences.holding(phrase, some).tolist() == [expected[at] for at in some]
    assert sequences.holding([1], np.zeros(0, np.int64)).tolist() == []


def test_a_phrase_at_either_end_of_a_text_is_held() -> None:
    assert holds(["a", "b", "c"], ["a", "b"])
    assert holds(["a", "b", "c"], ["b", "c"])
    assert holds(["a"], ["a"])
    assert not holds(["a", "b", "c"], ["a", "c"])
    assert not holds(["a"], ["a", "b"])
    assert not holds([], ["a"])
