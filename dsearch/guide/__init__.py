"""The guides: Markdown that is printed by `dsearch guide`, shown at `/guide` and executed by tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsearch.errors import NotFound

_FOLDER = Path(__file__).parent
# In reading order; a file that is not named here comes after them.
_ORDER = (
    "concepts",
    "getting-started",
    "finding",
    "indexes",
    "languages",
    "training",
    "differentiable",
    "end-to-end",
    "operating",
    "integrations",
    "scaling",
    "attention",
    "errors",
    "architecture",
    "decisions",
    "changelog",
)


@dataclass(frozen=True, slots=True)
class Guide:
    """A guide: the name that it is asked for by, and its first heading."""

    topic: str
    title: str


def guides() -> list[Guide]:
    """All guides, in reading order."""
    topics = sorted(path.stem for path in _FOLDER.glob("*.md"))
    ordered = [topic for topic in _ORDER if topic in topics]
    ordered += [topic for topic in topics if topic not in _ORDER]
    return [Guide(topic, _title(_read(topic))) for topic in ordered]


def guide(topic: str) -> str:
    """The Markdown of a guide.

    Raises:
        NotFound: no such topic; the message names those there are.
    """
    topics = [entry.topic for entry in guides()]
    if topic not in topics:
        raise NotFound(f"no guide {topic!r}; there are {', '.join(topics)}")
    return _read(topic)


def picture(name: str) -> Path:
    """The file of a picture that a guide shows.

    Raises:
        NotFound: no such picture.
    """
    for path in _FOLDER.glob("*.png"):  # a name is compared with those there are: it is never a path
        if path.name == name:
            return path
    raise NotFound(f"no picture {name!r} in the guides")


def _read(topic: str) -> str:
    return (_FOLDER / f"{topic}.md").read_text(encoding="utf-8")


def _title(text: str) -> str:
    return text.split("\n", 1)[0].removeprefix("#").strip()
