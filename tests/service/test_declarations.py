"""Declarations of the service: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


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


def test_each_argument_is_read() -> None:
    assert unread("service") == {
        "service.mcp.tools._add_documents: caller",
        "service.mcp.tools._list_collections: caller",
        "service.routes.page.page: request",
        "service.tasks.jobs.judge_job: report",
        "service.tasks.jobs.open_run: join",
        "service.tasks.jobs.save_job: device",
        "service.tasks.jobs.tune_job: device",
        "service.uploads.reading.read_apart: report",
        "service.wire.problems._of_dsearch: request",
        "service.wire.problems._of_validation: request",
    }
