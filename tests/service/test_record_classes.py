"""Records of the service are frozen and have slots, but for those named here."""

from __future__ import annotations

from support.record_classes import unlike_the_others


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("service") == {
        "StreamCounts": "-frozen",
        "_Once": "+eq=False",
        "_Job": "-frozen +eq=False",
        "Feedback": "+eq=False",
        "SearchAnswer": "-slots +kw_only",
        "BatchAnswer": "-slots",
        "AttendedQuery": "-slots",
        "AttendAnswer": "-slots +kw_only",
        "VjpAnswer": "-slots +kw_only",
        "DrawAnswer": "-slots +kw_only",
        "RewardAnswer": "-slots +kw_only",
        "LabelShare": "-slots",
        "PredictAnswer": "-slots +kw_only",
        "CollectionList": "-slots",
        "AliasList": "-slots",
        "Health": "-slots",
        "IndexDelta": "-slots",
        "GenerationInfo": "-slots",
        "StatisticsAnswer": "-slots",
        "TaskChange": "-frozen",
        "Attachment": "-frozen +eq=False",
        "AttachedBatch": "-frozen +eq=False",
    }
