"""Search options are declared once: every way in has the same options, defaults and bounds."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import pytest
import typer
from pydantic import ValidationError

from dsearch.attention_options import AttentionKeywords, AttentionOptions
from dsearch.cli.app import app
from dsearch.cli.declared_options import with_options_of
from dsearch.client.options import AttendOptions, FindOptions
from dsearch.declared import option, options_of
from dsearch.engine.options import LayerOptions, SearchArguments
from dsearch.engine.ranking.ranker import Ranker
from dsearch.search_options import SearchKeywords, SearchOptions
from dsearch.service.schemas.attend import AttendRequest, VjpRequest
from dsearch.service.schemas.documents import SimilarRequest
from dsearch.service.schemas.search import (
    BatchRequest,
    FilteredRequest,
    PredictRequest,
    SearchParameters,
    SearchRequest,
)
from dsearch.service.wire.declared_fields import options_from

DECLARED = options_of(SearchOptions)
NAMES = {*DECLARED, "filter"}


@pytest.mark.parametrize("model", [SearchRequest, SearchParameters, BatchRequest, SimilarRequest])
def test_requests_have_every_option(model: Any) -> None:
    own = {"query", "queries", "vector", "vectors", "like", "unlike", "explore", "episode"}
    assert {*model.model_fields} - own == NAMES
    for name, (field, about) in DECLARED.items():
        assert model.model_fields[name].default == field.default, name
        assert model.model_fields[name].description == about.help, name


def test_keyword_arguments_have_every_option() -> None:
    assert {*get_type_hints(SearchKeywords)} == NAMES
    assert {*get_type_hints(SearchArguments)} == {field.name for field in fields(SearchOptions)}
    assert {*get_type_hints(FindOptions)} == NAMES | {"explore", "episode"}
    declared = get_type_hints(SearchOptions)
    for name, kind in get_type_hints(SearchArguments).items():
        assert name == "filter" or declared[name] == kind, name


OF_TEXTS = {"operators", "highlight", "highlight_by", "stages", "rerank_candidates"}


@pytest.mark.parametrize(("command", "without"), [("search", set()), ("similar", OF_TEXTS)])
def test_commands_have_every_option(command: str, without: set[str]) -> None:
    commands: Any = typer.main.get_command(app)
    parameters = {one.name: one for one in commands.commands[command].params}
    assert "filter" in parameters
    for name, (field, about) in DECLARED.items():
        assert (name in parameters) == (about.cli and name not in without), name
        if name in parameters:
            assert parameters[name].default == field.default, name
            assert about.help[1:] in parameters[name].help, name


def test_attention_has_every_option_at_every_door() -> None:
    declared = options_of(AttentionOptions)
    for model in (AttendRequest, VjpRequest, PredictRequest):
        for name, (field, about) in declared.items():
            assert model.model_fields[name].default == field.default, name
            assert model.model_fields[name].description == about.help, name
    hints = get_type_hints(AttentionOptions)
    assert get_type_hints(AttentionKeywords) == {
        name: kind for name, kind in hints.items() if name not in ("model", "purpose", "score")
    }
    of_searches = {"stages", "rerank_candidates", "depth"}
    own = {*declared, "among", "exclude"} - {"model", "purpose"}
    hints = get_type_hints(LayerOptions, localns={"Score": Any})  # imported for type checkers alone
    assert {*hints} == own | of_searches
    assert {*get_type_hints(AttendOptions)} == {*declared, "among", "exclude", "filter"}
    defaults = inspect.signature(Ranker).parameters
    of_collections = ("model", "purpose", "match_field", "ignore_case")
    for name, (field, _) in declared.items():
        assert name in of_collections or defaults[name].default == field.default, name
    commands: Any = typer.main.get_command(app)
    for command in ("attend", "predict"):
        assert {*declared} < {one.name for one in commands.commands[command].params}


def test_a_request_becomes_the_options_that_it_gave() -> None:
    given: dict[str, Any] = {"limit": 3, "mode": "dense", "model": "v1", "hops": 2, "operators": False}
    assert SearchRequest.model_validate({"query": "cat", **given}).options() == SearchOptions(**given)
    assert SearchRequest.model_validate({"query": "cat"}).options() == SearchOptions()


def test_a_declared_option_reaches_http_and_the_command_line() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class More(SearchOptions):
        depth: int = option(3, "depth of something", low=1, high=9)

    @options_from(More, check=False)
    class Request(FilteredRequest):
        pass

    @with_options_of(More)
    def command(query: str, **chosen: Any) -> None:
        pass

    assert Request.model_validate({"depth": 4}).depth == 4  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError, match="use an integer from 1 to 9"):
        Request.model_validate({"depth": 10})
    commands = typer.Typer()
    commands.command()(command)
    parameters = {one.name: one for one in typer.main.get_command(commands).params}
    assert parameters["depth"].opts == ["--depth"]
    assert parameters["depth"].default == 3
