"""Queries made without judgements: some that a known document answers, and some that nothing answers.

The former are words of a stretch of a document, as a person types them who remembers part of it. The latter
are nonsense (letters by chance, runs of a keyboard, syllables) and everyday questions in several languages.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

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
