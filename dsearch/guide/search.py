"""Search of the guides by the words of their sections: the BM25 that collections have, without an encoder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from dsearch.guide import guide, guides
from dsearch.index import KeywordIndex

_HEADING = re.compile(r"^#{1,3} +(.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SIGNS = re.compile(
    r"!\[[^]]*\]\([^)]*\)|\[([^]]*)\]\([^)]*\)|`|\*\*?(?=\S)|(?<=\S)\*\*?|^[|:\- ]+$|^\| *| *\|$",
    re.MULTILINE,
)
"""Of Markdown: a picture, a link with its text, code, emphasis, the frame of a table."""
_SNIPPET = 200  # characters
_RECORDS = ("decisions", "changelog", "architecture")


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a guide: from one heading to the next."""

    topic: str
    heading: str
    text: str

    @property
    def anchor(self) -> str:
        """The heading as part of an address."""
        return anchor_of(self.heading)

    @property
    def snippet(self) -> str:
        """The beginning of its prose on one line, without signs of Markdown; code if there is no prose."""
        prose = _FENCE.sub(" ", self.text)
        text = " ".join(_SIGNS.sub(r"\1", prose if prose.strip() else self.text.replace("```", " ")).split())
        return text if len(text) <= _SNIPPET else f"{text[: text.rfind(' ', 0, _SNIPPET)]} …"


def anchor_of(heading: str) -> str:
    """A heading as part of an address: words in small letters, joined by hyphens."""
    return "-".join(re.findall(r"\w+", heading.lower()))


def search_guides(query: str, limit: int = 5) -> list[Section]:
    """The sections whose words fit a query best, best first; fewer or none if they lack its words.

    A heading counts twice; what was decided and changed counts half, since it explains no use.
    """
    sections, index = _indexed()
    scores = index.scores([query])[0] * [0.5 if section.topic in _RECORDS else 1.0 for section in sections]
    order = sorted(range(len(sections)), key=lambda place: -float(scores[place]))  # ties: in their order
    return [sections[place] for place in order[:limit] if scores[place] > 0]


def sections_of(topic: str) -> list[Section]:
    """The sections of a guide, in order; a # within a block of code is no heading."""
    text = guide(topic)
    blocks = [match.span() for match in _FENCE.finditer(text)]
    starts = [
        match
        for match in _HEADING.finditer(text)
        if not any(start <= match.start() < end for start, end in blocks)
    ]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return [
        Section(topic, match.group(1).replace("`", ""), text[match.end() : end].strip())
        for match, end in zip(starts, ends, strict=True)
    ]


@cache
def _indexed() -> tuple[list[Section], KeywordIndex]:
    sections = [section for each in guides() for section in sections_of(each.topic)]
    sections = [section for section in sections if section.text]
    texts = [f"{section.heading} {section.heading} {section.text}" for section in sections]
    return sections, KeywordIndex.build(texts)
