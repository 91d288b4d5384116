"""Types of the fields that requests share, with the values that they may have.

To Python they are `str`, `Sequence[float]` and the like; a server checks what it is sent by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from dsearch.declared import Values
from dsearch.types import id_text

MAX_QUERY_CHARACTERS = 8192
MAX_QUERIES = 256
MAX_ATTENDED = 64  # queries of one request of attention
MAX_EXAMPLES = 100  # of a search by example
MAX_DELETED_IDS = 10_000
MAX_DIMENSION = 16_384
MAX_IDS = 1000  # of the documents to attend to, or to leave out
MAX_JUDGED_QUERIES = 50_000
MAX_EXCLUDED = 1000
MAX_BIAS = 2_000_000  # positions; a body's own bound is some 400,000 numbers


def has_words(text: str) -> str:
    """Return the text; raises ValueError if it has no word, or if UTF-8 does not have it."""
    if not encodable(text).strip():
        raise ValueError("empty")
    return text


def encodable(text: str) -> str:
    """Return the text, if UTF-8 has it: a lone surrogate is no text, and its error is a ValueError."""
    text.encode()
    return text


def name_of(longest: int) -> Values:
    """Return the values of a name that may be empty."""
    return Values(f"a string of at most {longest} characters", longest=longest, after=encodable)


QueryText = Annotated[
    str,
    Values(
        f"1 to {MAX_QUERY_CHARACTERS} characters, at least one word",
        shortest=1,
        longest=MAX_QUERY_CHARACTERS,
        after=has_words,
    ),
]
StateText = Annotated[
    str, Values(f"up to {MAX_QUERY_CHARACTERS} characters", longest=MAX_QUERY_CHARACTERS, after=encodable)
]
DocumentId = Annotated[
    str, Values("a string of 1 to 512 bytes, or an integer", shortest=1, longest=512, before=id_text)
]
Version = Annotated[str, Values("a registered version such as v1; v0 is untrained", pattern=r"^v[0-9]{1,9}$")]
Name = Annotated[str, name_of(128)]
EpisodeName = Annotated[
    str, Values("a name of 1 to 128 characters", shortest=1, longest=128, after=encodable)
]
KeyKind = Annotated[
    str, Values("auto, or a kind such as Flat, SQ8, HNSW or IVF", shortest=1, longest=32)
]  # the engine checks the name, and lists the kinds that are installed
FieldPath = Annotated[
    str, Values("a dotted path of 1 to 256 characters, such as author.name", shortest=1, longest=256)
]
Filter = Annotated[object, Values('an object such as {"year": {"gte": 1990}}', sent=dict[str, Any])]
Metadata = Annotated[Mapping[str, Any], Values("an object of JSON values")]
Flag = Annotated[bool, Values("true or false")]
# Checked by pydantic only: a Python call for each number would hold up the event loop.
Vector = Annotated[Sequence[float], Values(shortest=1, longest=MAX_DIMENSION)]
# A gradient has a number for each candidate: up to 1000 of a leg and head.
Row = Annotated[Sequence[float], Values(longest=65_536)]
Id = Annotated[str, Values(shortest=1, longest=512)]
Queries = Annotated[
    Mapping[Id, Annotated[str, Values(longest=MAX_QUERY_CHARACTERS)]],
    Values(
        f"an object of query id → text, at most {MAX_JUDGED_QUERIES}, {MAX_QUERY_CHARACTERS} characters each",
        longest=MAX_JUDGED_QUERIES,
    ),
]
Judgements = Annotated[
    Mapping[
        Id,
        Mapping[Id, Annotated[float, Values(low=-1e6, high=1e6)]],
    ],
    Values(
        "an object of query id → document id → grade, above 0 for documents that answer the query",
        longest=MAX_JUDGED_QUERIES,
    ),
]
Excluded = Annotated[
    Mapping[
        Id,
        Annotated[Sequence[Id], Values(longest=MAX_EXCLUDED)],
    ],
    Values(
        f"an object of query id → at most {MAX_EXCLUDED} document ids",
        longest=MAX_JUDGED_QUERIES,
    ),
]

Scores = Annotated[
    Sequence[float],
    Values(f"a list of at most {MAX_JUDGED_QUERIES} finite numbers", longest=MAX_JUDGED_QUERIES),
]
PageSize = Annotated[int, Values("an integer from 1 to 1000", low=1, high=1000)]


@dataclass(frozen=True, slots=True)
class StampGiven:
    """The state to be asked, as an answer names it."""

    generation: Annotated[int, Values("the generation of an answer", low=1, high=2**53 - 1)]
    model: Version
    sequence: Annotated[int, Values("the sequence of an answer", low=0, high=2**53 - 1)]
