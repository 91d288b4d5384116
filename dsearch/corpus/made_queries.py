"""Queries made without judgements: some that a known document answers, and some that nothing answers.

The former are sentences and titles of documents, to train on, or words of a stretch of a document, as a
person types them who remembers part of it. The latter are nonsense (letters by chance, runs of a keyboard,
syllables) and everyday questions in several languages.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from dsearch.types import Document

_STRETCH = (5, 14)  # words
_LEFT_OUT = 0.4  # share of its words
_FEWEST = 2
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_SYLLABLES = [
    "ba",
    "ke",
    "lo",
    "mi",
    "nu",
    "pra",
    "ste",
    "vo",
    "xi",
    "zor",
    "quel",
    "fim",
    "dra",
    "gup",
    "tesh",
    "wol",
]

EVERYDAY = (
    "how do i get red wine out of a carpet",
    "cheap flights to lisbon next weekend",
    "who won the football match last night",
    "best pizza dough recipe with dry yeast",
    "what time does the supermarket close on sunday",
    "how to tie a bow tie",
    "names for a grey kitten",
    "movie about a talking bear in london",
    "when should i prune roses",
    "rent a van for moving house",
    "birthday present for a ten year old girl",
    "lyrics of a song about rain and trains",
    "wie komme ich mit dem fahrrad zum bahnhof",
    "rezept für apfelkuchen mit streuseln",
    "welches geschenk zum siebzigsten geburtstag",
    "comment nettoyer un four très sale",
    "meilleur restaurant près de la plage",
    "horaires du bus pour la gare centrale",
    "cómo quitar manchas de café de una camisa",
    "dónde comprar zapatos baratos en madrid",
    "receta de tortilla de patatas con cebolla",
    "come si prepara un buon risotto ai funghi",
    "orari dei treni per firenze domani mattina",
    "como chegar ao aeroporto de metrô",
    "qual é o melhor time de futebol do brasil",
    "hoe laat gaat de winkel vandaag open",
    "jak ugotować zupę pomidorową",
    "hur lång tid tar det att lära sig simma",
    "как приготовить борщ с говядиной",
    "сколько стоит билет в театр",
    "今天天气怎么样",
    "附近哪里有好吃的面馆",
    "明日の電車の時間を教えてください",
    "kız arkadaşıma hediye ne alabilirim",
    "كيف أطبخ الأرز بالدجاج",
    "दिल्ली में सस्ता होटल कहाँ मिलेगा",
)


def known_item_query(document: Document, seed: int = 0) -> str | None:
    """Draw a query that the document answers; None if it has too few words."""
    words = document.content.split()
    if len(words) < _STRETCH[0]:
        return None
    chance = random.Random(f"{seed}/{document.id}")
    length = chance.randint(*_STRETCH)
    start = chance.randrange(max(1, len(words) - length))
    stretch = words[start : start + length]
    left_out = {i for i, word in enumerate(stretch) if len(word) < 4 or chance.random() < _LEFT_OUT}
    some = [word.strip(".,;:!?()[]{}\"'`*#") for i, word in enumerate(stretch) if i not in left_out]
    some = [word for word in some if word]
    return " ".join(some).lower() if len(some) >= _FEWEST else None


def known_item_queries(documents: Sequence[Document], seed: int = 0) -> list[tuple[str, str]]:
    """Draw a query of each document that has one: (query, id of the document)."""
    drawn = ((known_item_query(document, seed), document.id) for document in documents)
    return [(query, id) for query, id in drawn if query is not None]


def nonsense_queries(count: int, seed: int = 0) -> list[str]:
    """Draw queries without a meaning."""
    chance = random.Random(f"nonsense/{seed}")
    kinds = (_letters, _keyboard, _syllables)
    return [
        " ".join(kinds[number % len(kinds)](chance) for _ in range(chance.randint(1, 4)))
        for number in range(count)
    ]


def _letters(chance: random.Random) -> str:
    return "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(3, 9)))


def _keyboard(chance: random.Random) -> str:
    row, length = chance.choice(_KEYS), chance.randint(3, 6)
    start = chance.randrange(len(row))
    return (row * 2)[start : start + length]


def _syllables(chance: random.Random) -> str:
    return "".join(chance.choice(_SYLLABLES) for _ in range(chance.randint(2, 4)))


ABBREVIATIONS = frozenset(
    {"e.g", "i.e", "etc", "vs", "cf", "al", "fig", "figs", "eq", "eqs", "sec", "vol", "pp", "ca", "approx"}
    | {"dr", "mr", "mrs", "ms", "prof", "jr", "sr", "inc", "ltd", "dept", "resp"}
)
SMALL_ABBREVIATIONS = frozenset({"co", "corp", "st", "gen", "gov", "sgt", "rev", "mt", "ft", "op"})
"""Those after which a capital begins a sentence as a rule, and a small letter does not."""
LOWER_CASE_WORDS = 12  # a shorter text may lack capital letters by chance
LOWER_CASE_STARTS = 5  # beginnings of sentences, of which most are small where capitals mark names alone
LOWER_CASE_SHARE = 0.8
BLOCK_END = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)])\s)")
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[^\s\"'“‘(\[a-z])|[。！？]+\s*")
LOWER_CASE_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*\s+(?=[\"'“‘(\[]*\w)|[。！？]+\s*")
SENTENCE_START = re.compile(r"(?:^|[.!?…][\"'”’)\]]*\s+)[\"'“‘(\[]*([^\W\d_])")
INITIALS = re.compile(r"(?:[a-z]\.)+[a-z]")  # u.s., a.m.
PLAIN_WORD = re.compile(r"[\"'“‘(\[]*[^\W\d_]+(?:['’-][^\W\d_]+)*[\"'”’)\].,;:!?…]*")


def sentences(text: str) -> list[str]:
    """Split a text into sentences; line breaks within them become blanks.

    A sentence ends at `.`, `!`, `?` or `…` before a blank and something other than a small letter, unless
    the word before is a usual abbreviation or a single letter; also at a blank line and before the next item
    of a list. Small letters begin sentences too in a text of `LOWER_CASE_WORDS` without a capital letter, and
    in one in which most of at least `LOWER_CASE_STARTS` beginnings are small, whatever names it has.
    """
    parts: list[str] = []
    lower_case = _is_lower_case(text)
    sentence_end = LOWER_CASE_SENTENCE_END if lower_case else SENTENCE_END
    for block in BLOCK_END.split(text):
        block = " ".join(block.split())
        start = 0
        for end in sentence_end.finditer(block):
            if not _abbreviated(block[start : end.start()], end.group(), lower_case):
                parts.append(block[start : end.end()].strip())
                start = end.end()
        parts.append(block[start:].strip())
    return [sentence for sentence in parts if sentence]


def inverse_cloze(
    documents: Iterable[Document],
    per_document: int = 2,
    seed: int = 0,
    min_words: int = 4,
    max_words: int = 40,
) -> list[tuple[str, str]]:
    """Draw training queries from the documents themselves: (sentence of the body, id of the document).

    The inverse cloze task (Lee, Chang & Toutanova, ACL 2019): find the text that a sentence was taken from.
    Here the sentence stays in the text, where keyword search finds it: fix the keyword weight while training
    on these.

    Sentences shorter than `min_words`, longer than `max_words`, in more than one document, or of code and
    numbers (fewer than `min_words` or 60 % plain words) are not drawn. A document gives at most
    `per_document`; one with a single such sentence gives none, since that is its whole text. The draw depends
    on `seed` and the document's id alone. Words are separated by blanks, so scripts without blanks give no
    queries.
    """
    pools: dict[str, list[str]] = {}
    owners: dict[str, str | None] = {}
    for document in documents:
        candidates = [s for s in sentences(document.text) if _is_prose(s, min_words, max_words)]
        pools[document.id] = candidates if len(candidates) > 1 else []
        for sentence in candidates:
            key = sentence.casefold()
            owners[key] = document.id if owners.get(key, document.id) == document.id else None
    drawn: list[tuple[str, str]] = []
    for identity, candidates in pools.items():
        pool = [sentence for sentence in dict.fromkeys(candidates) if owners[sentence.casefold()] == identity]
        chance = random.Random(f"{seed}/{identity}")
        drawn += [(sentence, identity) for sentence in chance.sample(pool, min(per_document, len(pool)))]
    return drawn


def title_queries(
    documents: Iterable[tuple[str, str]], min_words: int = 3, max_words: int = 40
) -> list[tuple[str, str]]:
    """Titles as training queries of their documents: (title, id of the document).

    Titles that several documents have, short ones, and names of files or functions are left out.

    Args:
        documents: (title, id) of documents with a body.
        min_words: smallest number of words.
        max_words: largest number.
    """
    titles = [(" ".join(title.rstrip(" .").split()), identity) for title, identity in documents]
    times = Counter(title.casefold() for title, _ in titles)
    return [
        (title, identity)
        for title, identity in titles
        if times[title.casefold()] == 1 and _is_prose(title, min_words, max_words)
    ]


def _is_lower_case(text: str) -> bool:
    if text.lower() == text:
        return len(text.split()) >= LOWER_CASE_WORDS
    starts = [letter.islower() for letter in SENTENCE_START.findall(text)]
    return len(starts) >= LOWER_CASE_STARTS and sum(starts) >= LOWER_CASE_SHARE * len(starts)


def _is_prose(sentence: str, min_words: int, max_words: int) -> bool:
    words = sentence.split()
    plain = sum(PLAIN_WORD.fullmatch(word) is not None for word in words)
    return len(words) <= max_words and plain >= max(min_words, 0.6 * len(words))


def _abbreviated(before: str, end: str, lower_case: bool) -> bool:
    if lower_case and end.startswith(("..", "…")):  # a pause, where no capital says more
        return True
    if not end.startswith(".") or end.startswith(".."):
        return False
    words = before.split()
    last = words[-1].lstrip("\"'“‘([").lower() if words else ""
    if lower_case and (last in SMALL_ABBREVIATIONS or INITIALS.fullmatch(last)):
        return True
    return last in ABBREVIATIONS or (len(last) == 1 and last.isalpha())
