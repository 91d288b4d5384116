"""Texts in several languages: each is stemmed by its own, CJK runs are found by characters."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from dsearch.errors import InvalidRequest, MissingExtra, UnsupportedFormat
from dsearch.index.keyword import languages
from dsearch.index.keyword.fresh_texts import TokenizedTexts
from dsearch.index.keyword.index import KeywordIndex
from dsearch.index.keyword.languages import import_bm25s
from dsearch.index.keyword.query import parse_query
from dsearch.index.keyword.tokenizer import Tokenizer

pytest.importorskip("py3langid", reason="the extra multilingual is not installed")

TEXTS = [
    "The engineers were running tests on the wings of several aircraft.",
    "Die Ingenieure prüften die Häuser am Rand der Städte.",
    "Los ingenieros revisaron las casas y los edificios de las ciudades.",
    "Инженеры проверили дома и здания нескольких городов.",
    "検索エンジンは文書を見つけます。",
    "搜索引擎可以找到文档",
    "검색 엔진은 문서를 찾습니다",
]
ENGLISH, GERMAN, SPANISH, RUSSIAN, JAPANESE, CHINESE, KOREAN = range(7)


@pytest.fixture(scope="module")
def index() -> KeywordIndex:
    return KeywordIndex.build(TEXTS, tokenizer=Tokenizer.for_language("auto"))


@pytest.mark.parametrize(
    ("query", "position"),
    [
        ("wing of an aircraft", ENGLISH),  # wings
        ("das Haus am Rand", GERMAN),  # Häuser
        ("una casa en la ciudad", SPANISH),  # casas, ciudades
        ("здание города", RUSSIAN),  # здания, городов
        ("文書", JAPANESE),
        ("引擎", CHINESE),
        ("엔진", KOREAN),  # 엔진은
    ],
)
def test_a_query_finds_inflected_words_of_its_language(
    index: KeywordIndex, query: str, position: int
) -> None:
    _, positions = index.search([query], 1)
    assert positions[0, 0] == position
    assert index.highlights(query, TEXTS[position])


def test_a_short_query_has_a_term_for_each_plausible_language(index: KeywordIndex) -> None:
    (word,) = index.tokenizer.query_words("running")
    assert {*word.terms, *word.variants} == {"running", "run"}  # it may be Swedish
    assert index.search(["running"], 1)[1][0, 0] == ENGLISH
    # A variant in no document does not count beside one that is in some.
    one, two = index.scores(["running", "engineers running"])[:, ENGLISH]
    assert one > two / 2 > 0


def test_fresh_texts_and_the_index_agree(index: KeywordIndex) -> None:
    fresh = TokenizedTexts.of(index.tokenizer, TEXTS)
    for query in ("casas de la ciudad", "検索エンジン", "running wings"):
        assert (index.scores([query])[0] == index.scores_of_texts(query, fresh)).all()


@pytest.mark.parametrize(
    ("query", "position"),
    [
        ('"エンジンは文"', JAPANESE),
        ('"引擎可以"', CHINESE),
        ("+Haus", GERMAN),
        ('"wing of several"', ENGLISH),
        ("+running", ENGLISH),  # it may be Swedish, where the stem is another
    ],
)
def test_a_phrase_matches_in_each_language_that_it_may_have(
    index: KeywordIndex, query: str, position: int
) -> None:
    mask = index.matching(parse_query(query))
    assert mask is not None
    assert mask.nonzero()[0].tolist() == [position]
    fresh = index.matching_texts(parse_query(query), TokenizedTexts.of(index.tokenizer, TEXTS))
    assert fresh is not None
    assert (mask == fresh).all()


def test_characters_of_a_run_and_their_pairs_are_terms() -> None:
    tokenizer = Tokenizer.for_language("german,english")
    assert next(tokenizer.terms(["Python検索 v2"])) == ["python", "検", "検索", "索", "v2"]
    assert [word.leaves for word in next(tokenizer.words(["検索"]))] == [("検", "索")]


def test_a_list_restricts_the_languages() -> None:
    tokenizer = Tokenizer.for_language("german, english")
    assert tokenizer.languages == ("german", "english")
    assert Tokenizer.from_settings(tokenizer.settings()) == tokenizer
    with pytest.raises(InvalidRequest, match=r"language 'klingon' in a list; use some of arabic, .*turkish"):
        Tokenizer.for_language("german,klingon")
    with pytest.raises(InvalidRequest, match="language 'none' in a list"):
        Tokenizer.for_language("german,none")


def test_other_detection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Tokenizer.for_language("german,english").settings()
    assert settings["version"] == 2  # refused by releases that know one language only
    monkeypatch.setattr("dsearch.index.keyword.tokenizer.detector_digest", lambda: "0" * 64)
    with pytest.raises(UnsupportedFormat, match=r"py3langid give other terms.*build the generation"):
        Tokenizer.from_settings(settings)
    assert Tokenizer.from_settings(settings, rebuild=True).languages == ("german", "english")


def test_without_the_extra_one_language_works(monkeypatch: pytest.MonkeyPatch) -> None:
    languages._detector.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid", None)
    try:
        with pytest.raises(
            MissingExtra, match=r"pip install 'dsearch\[multilingual\]', or name one language"
        ):
            Tokenizer.for_language("auto")
        assert Tokenizer.for_language("german").stemmer == "german"
    finally:
        languages._detector.cache_clear()


def test_variants_of_stemmers_are_no_languages() -> None:
    named = languages.languages()
    assert {"english", "german", "none", "auto"} <= {*named}
    assert {"porter", "dutch_porter", "lovins"}.isdisjoint(named)
    assert list(named) == sorted(named)
    for name in ("porter", "auto", "klingon"):
        with pytest.raises(InvalidRequest, match=rf"language='{name}'; use one of arabic, "):
            languages.stemmer_and_stop_words(name)
    assert languages.stemmer_and_stop_words("none") == (None, ())
    assert languages.stemmer_and_stop_words("english") == ("english", languages.ENGLISH_STOP_WORDS)
    assert languages.named_languages("english") == ()
    assert languages.named_languages(" german, english,german ") == ("german", "english")
    assert {"estonian", "irish"}.isdisjoint(languages.named_languages("auto"))


def test_readings_of_a_query_that_are_the_same_are_one() -> None:
    """In the order of their probabilities; a word has no variant that is its own term."""
    tokenizer = Tokenizer.for_language("english,german,french")
    for query in ("casa haus maison houses", "tests", "the houses", "zzz"):
        readings = tokenizer.readings(query)
        assert 1 <= len(readings) <= 3
        assert all(readings.index(reading) == place for place, reading in enumerate(readings))
        for word in tokenizer.query_words(query):
            assert set(word.variants).isdisjoint(word.terms)
            assert len(set(word.variants)) == len(word.variants)
    assert len(tokenizer.readings("zzz")) == 1


def test_only_words_with_one_term_have_variants() -> None:
    """A stop word of the likeliest language is none in the others, and an identifier is no word of any."""
    tokenizer = Tokenizer.for_language("auto")
    the, haus = tokenizer.query_words("the haus")
    assert (the.terms, the.variants, haus.terms) == ((), (), ("haus",))
    assert len(tokenizer.readings("the haus")) == 2
    identifier = tokenizer.query_words("a runningTests")[1]
    assert len(identifier.terms) == 3
    assert identifier.variants == ()
    assert len(tokenizer.readings("a runningTests")) == 2


def test_a_word_is_shown_in_whichever_language_it_may_be(index: KeywordIndex) -> None:
    """As it is found: "running" is Swedish more likely, where its stem is another."""
    ((start, end),) = index.highlights("running", TEXTS[ENGLISH])
    assert TEXTS[ENGLISH][start:end] == "running"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once the JAX that is installed here was started; bm25s was not yet imported."""
    flag = tmp_path / "started"
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text(f"def top_k(*_):\n    open({str(flag)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("bm25s", "jax"):
            monkeypatch.delitem(sys.modules, name)
    return flag


def test_jax_is_not_started_and_can_be_imported_afterwards(started: Path) -> None:
    assert import_bm25s().BM25(method="lucene").method == "lucene"
    assert import_bm25s(".stopwords").STOPWORDS_GERMAN
    assert "jax" not in sys.modules
    assert not started.exists()
    importlib.import_module("jax.lax").top_k()
    assert started.exists()


def test_jax_that_is_in_use_stays_in_use(started: Path) -> None:
    theirs = importlib.import_module("jax.lax")
    import_bm25s()
    assert not started.exists()
    assert sys.modules["jax.lax"] is theirs
    assert importlib.import_module("jax").lax is theirs


def test_bm25s_by_itself_would_start_it(started: Path) -> None:
    """What the tests above are worth."""
    importlib.import_module("bm25s")
    assert started.exists()
