"""Jobs are declared once: command line, HTTP and clients have the same options, defaults and bounds."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

import pytest
import typer
from support.doors import made_up

from dsearch.attention.retrieval.head import QUERY_SIDES as OF_HEADS
from dsearch.cli.grouped_help import app
from dsearch.cli.options import as_flag
from dsearch.errors import InvalidRequest
from dsearch.jobs import (
    CONTEXT,
    OBJECTIVE_NAMES,
    QUERY_SIDES,
    RISKS,
    LearningJob,
    SavingJob,
    TrainingJob,
    TrainOptions,
    TuneOptions,
    TuningJob,
    options_of,
    request_of,
)
from dsearch.operations import Train, Tune
from dsearch.service.schemas.declared import body_of, call_of
from dsearch.training import Gate
from dsearch.training.losses.objectives import OBJECTIVES

JUDGED: dict[str, Any] = {"queries": {"q": "cat"}, "judgements": {"q": {"d": 1.0}}}
KINDS = [
    (TrainingJob, body_of(Train), TrainOptions, "train"),
    (TuningJob, body_of(Tune), TuneOptions, "tune"),
]


@pytest.mark.parametrize(("job", "request_model", "typed", "command"), KINDS)
def test_every_way_in_has_every_option(
    job: type[LearningJob], request_model: Any, typed: Any, command: str
) -> None:
    declared = options_of(job)
    fields = {field.name for field in dataclasses.fields(job)} - {"left_out"}
    assert set(request_model.model_fields) == fields
    assert set(get_type_hints(typed)) == fields - {"queries", "judgements"}
    commands: Any = typer.main.get_command(app)
    parameters = {one.name: one for one in commands.commands[command].params}
    for name, (field, about) in declared.items():
        assert parameters[name].default == field.default == request_model.model_fields[name].default, name
        assert as_flag(name) in parameters[name].opts, name
        assert about.help in request_model.model_fields[name].description, name
        assert about.help[1:] in parameters[name].help, name


def test_lists_are_those_of_the_registries() -> None:
    assert set(OBJECTIVE_NAMES) == {*OBJECTIVES, CONTEXT}
    assert tuple(QUERY_SIDES) == tuple(OF_HEADS)
    assert Gate() == Gate.of_risk(TrainingJob().risk, alpha=TrainingJob().alpha, margin=TrainingJob().margin)
    assert get_args(get_type_hints(TuneOptions)["risk"]) == tuple(RISKS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of: judgements; self_supervised; source='feedback'; objective='context' with field"),
        ({**JUDGED, "self_supervised": True}, "give one of"),
        ({"queries": {}}, "belong together"),
        ({**JUDGED, "epochs": 0}, "epochs=0; use an integer from 1 to 1000"),
        ({**JUDGED, "alpha": 1.0}, "alpha=1.0; use a number between 0 and 1"),
        ({**JUDGED, "risk": "reckless"}, "risk='reckless'; use one of cautious, balanced, bold"),
        ({**JUDGED, "scope": "all"}, "scope='all'; use one of head, query, full"),
        ({"source": "clicks"}, "source='clicks'; use feedback"),
        ({"source": "feedback", "trusted_keys": []}, "trusted_keys is empty"),
        ({"trusted_keys": ["k"], **JUDGED}, "trusted_keys needs source='feedback'"),
        ({"source": "feedback", "trusted_keys": ["k"], **JUDGED}, "to judge by, not both"),
        ({"source": "feedback", "scope": "full"}, "leave out scope='full'"),
        ({"objective": "context"}, "belong together"),
        ({"objective": "context", "field": "x" * 201}, "use a text of 1 to 200 characters"),
        ({"objective": "context", "field": "price", **JUDGED, "heads": 2}, "leave out judgements, heads=2"),
        ({"self_supervised": True, "teacher": {}}, "self_supervised=True, teacher: the corpus has no scores"),
        (
            {**JUDGED, "scope": "full", "teacher": {"q": {"d": 1.0}}},
            "alone; give judgements, and leave out teacher",
        ),
        ({**JUDGED, "encoder_training": "lora"}, "of scope query or full"),
        ({**JUDGED, "scope": "full", "objective": "judged"}, "no objective, one head"),
        ({**JUDGED, "compiled": True}, "compiled=True: of scope='full' alone"),
        ({**JUDGED, "heads": 2, "query_side": "linear"}, "query_side='linear' has one head"),
        ({**JUDGED, "heads": True}, "heads=True; use"),
        ({**JUDGED, "seed": False}, "seed=False; use"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TrainingJob(**options).check()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        JUDGED,
        {"self_supervised": True},
        {"source": "feedback"},
        {"source": "feedback", **JUDGED},
        {"source": "feedback", "trusted_keys": ["k"]},
        {"objective": "context", "field": "price"},
        {**JUDGED, "scope": "full", "negatives": 2, "precision": "bfloat16"},
        {**JUDGED, "scope": "query", "encoder_training": "lora"},
        {**JUDGED, "precision": "bfloat16"},
        {"self_supervised": True, "scope": "query", "precision": "bfloat16"},
    ],
)
def test_what_goes_together_travels_to_a_server_and_back(options: dict[str, Any]) -> None:
    job = TrainingJob(**options)
    job.check()
    sent = request_of(job)
    assert sent == options
    model: Any = body_of(Train)
    body = model.model_validate({("from" if name == "source" else name): v for name, v in sent.items()})
    call = call_of(Train, {"collection": "papers"}, [body])
    request = {"queries": call.queries, "judgements": call.judgements, **call.options}
    from dsearch.service.tasks.jobs import job_from_request

    assert job_from_request(TrainingJob, request) == job


OTHERS: dict[str, Any] = {
    "encoder_learning_rate": 0.001,
    "heads": 2,
    "objective": "judged",
    "query_side": "mlp",
    "scope": "query",
}


def options_of_training() -> dict[str, Any]:
    """Each option with another value than its default."""
    fields = {field.name: field for field in dataclasses.fields(TrainingJob)}
    return {
        name: OTHERS.get(name, made_up(name, kind, default=fields[name].default))
        for name, kind in get_type_hints(TrainOptions).items()
    }


ALWAYS = {"excitation", "field"}  # of several heads, of an objective of values
OF_ENCODERS = {"encoder_training", "encoder_learning_rate"}
OF_FULL = {"negatives", "compiled"}
REFUSED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a field": (
        {"objective": "context", "field": "price"},
        {
            "excitation",
            "exclude",
            "heads",
            "precision",
            "query_side",
            "scope",
            "self_supervised",
            "source",
            "teacher",
        }
        | {"trusted_keys"}
        | OF_ENCODERS
        | OF_FULL,
    ),
    "clicks": (
        {"source": "feedback"},
        ALWAYS | OF_ENCODERS | OF_FULL | {"scope", "self_supervised", "teacher"},
    ),
    "the corpus": (
        {"self_supervised": True},
        ALWAYS | OF_ENCODERS | OF_FULL | {"source", "teacher", "trusted_keys"},
    ),
    "judgements": (JUDGED, ALWAYS | OF_ENCODERS | OF_FULL | {"self_supervised", "trusted_keys"}),
    "scope query": (
        {**JUDGED, "scope": "query"},
        ALWAYS | OF_FULL | {"self_supervised", "source", "trusted_keys"},
    ),
    "scope full": (
        {**JUDGED, "scope": "full"},
        ALWAYS
        | {"heads", "objective", "query_side", "self_supervised", "source", "teacher"}
        | {"trusted_keys"},
    ),
}
"""What each way to train refuses of all options, given alone beside it."""


@pytest.mark.parametrize("way", REFUSED)
def test_each_way_to_train_refuses_the_options_of_others(way: str) -> None:
    base, expected = REFUSED[way]
    refused: dict[str, str] = {}
    for name, value in options_of_training().items():
        if name in base:
            continue
        try:
            TrainingJob(**{**base, name: value}).check()
        except InvalidRequest as error:
            refused[name] = str(error)
    assert {*refused} == expected, refused


def test_each_field_of_a_job_that_was_given_is_one_of_its_request() -> None:
    given = {**JUDGED, **options_of_training()}
    assert request_of(TrainingJob(**given)) == given
    for name, value in given.items():
        assert request_of(TrainingJob(**{name: value})) == {name: value}
    assert request_of(TrainingJob(left_out={"lines": 1})) == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", range(4))
def test_each_score_of_both_versions_is_finite(bad: float, place: int) -> None:
    scores = [0.1, 0.2, 0.3, 0.4]
    SavingJob(before=scores[:2], after=scores[2:]).check()
    scores[place] = bad
    with pytest.raises(InvalidRequest, match="scores that are not finite"):
        SavingJob(before=scores[:2], after=scores[2:]).check()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (0, 1)])
def test_each_example_has_a_score_by_both_versions(before: int, after: int) -> None:
    with pytest.raises(InvalidRequest, match=f"^{before} scores before and {after} after; give one each"):
        SavingJob(before=[0.5] * before, after=[0.5] * after).check()


def test_a_task_of_an_earlier_version_is_still_understood() -> None:
    from dsearch.service.tasks.jobs import job_from_request

    job = job_from_request(TrainingJob, {"self_supervised": True, "from": None, "fusion": "constant"})
    assert job == TrainingJob(self_supervised=True)
