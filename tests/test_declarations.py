"""Records are frozen and have slots, but for those named here.

A record that is not frozen can be changed by whoever holds it, as a key of a cache or in another thread; one
without slots takes misspelt names; without `kw_only` its options depend on their order. A class of arrays has
`eq=False`, since arrays that are compared are no truth value.
"""

from __future__ import annotations

import re

from support.paths import ROOT

_DECLARED = re.compile(r"^ *@dataclass(?:\((.*?)\))?\n(?: *@.*\n)* *class (\w+)", re.MULTILINE)
_USUAL = {"frozen=True", "slots=True"}
UNUSUAL = {
    "+kw_only": """
        AttentionOptions HeadOptions LearningJob SavingJob SearchOptions TrainingJob TrainingOptions TuningJob
        ValueOptions
    """,
    "-frozen": "DataReport FeedbackTransaction Folders Reaction StreamCounts TaskChange _Episode _State",
    "-frozen +eq=False": "AttachedBatch Attachment _Job _Lately",
    "+eq=False": """
        CandidateLists CorpusStatistics Feedback QueryChanges SnapshotTokens TokenCodec TokenTable _Once
    """,
    # Answers over HTTP, of which pydantic makes schemas.
    "-slots +kw_only": "AttendAnswer DrawAnswer PredictAnswer RewardAnswer SearchAnswer VjpAnswer",
    "-slots": """
        AliasList AttendedQuery BatchAnswer CollectionList GenerationInfo Health IndexDelta LabelShare
        StatisticsAnswer
    """,
}


def test_records_are_declared_alike() -> None:
    found: dict[str, list[str]] = {}
    for file in (ROOT / "dsearch").rglob("*.py"):
        for options, name in _DECLARED.findall(file.read_text(encoding="utf-8")):
            given = {part.strip() for part in options.split(",") if part.strip()}
            differing = [f"-{one.partition('=')[0]}" for one in sorted(_USUAL - given)]
            differing += [f"+{one.removesuffix('=True')}" for one in sorted(given - _USUAL)]
            if differing:
                found.setdefault(" ".join(differing), []).append(name)
    assert {how: sorted(names) for how, names in found.items()} == {
        how: names.split() for how, names in UNUSUAL.items()
    }
