"""Documents whose words no query uses: only past queries tell which documents belong together."""

from __future__ import annotations

from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

TOPICS, EACH, DOCUMENTS = 20, 4, 3


def topics_in(engine: SearchEngine) -> Collection:
    """A collection `topics` of three documents a topic."""
    topics = engine.create("topics")
    topics.ingest(
        [
            Document(f"d{topic}-{n}", f"alpha{topic} beta{topic} gamma{n} delta{(topic * 7 + n) % 11}")
            for topic in range(TOPICS)
            for n in range(DOCUMENTS)
        ]
    )
    return topics


def queries_of() -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Four wordings of each topic's question, and their judgements: two documents of the topic."""
    numbers = [(topic, n) for topic in range(TOPICS) for n in range(EACH)]
    texts = {f"q{topic:02}-{n}": f"question{topic} about{topic} wording{n}" for topic, n in numbers}
    return texts, {f"q{topic:02}-{n}": {f"d{topic}-0": 2.0, f"d{topic}-1": 1.0} for topic, n in numbers}
