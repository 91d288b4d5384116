"""Search options are declared once: every way in has the same options, defaults and bounds."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import pytest
import typer
from pydantic import ValidationError

from dsearch.attention_options import AttentionKeywords, AttentionOptions
from dsearch.cli.grouped_help import app
from dsearch.cli.options import with_options_of
from dsearch.client.calls import AttendOptions, FindOptions
from dsearch.declared import option, options_of
from dsearch.engine.options import LayerOptions, SearchArguments
from dsearch.engine.ranking.ranker import Ranker
from dsearch.errors import InvalidRequest
from dsearch.operations import Attend, Differentiate, Predict
from dsearch.search_options import SearchKeywords, SearchOptions
from dsearch.service.schemas.declared import body_of, model_of

DECLARED = options_of(SearchOptions)
NAMES = {*DECLARED, "filter"}


def test_keyword_arguments_have_every_option() -> None:
    assert {*get_type_hints(SearchKeywords)} == NAMES - {"fields"}  # clients take a list, too
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
    for model in map(body_of, (Attend, Differentiate, Predict)):
        assert model is not None
        for name, (field, about) in declared.items():
            assert model.model_fields[name].default == field.default, name
            assert model.model_fields[name].description == about.help, name
    hints = get_type_hints(AttentionOptions)
    assert get_type_hints(AttentionKeywords) == {
        name: kind for name, kind in hints.items() if name not in ("model", "score")
    }
    of_searches = {"stages", "rerank_candidates", "depth"}
    own = {*declared, "among", "exclude"} - {"model"}
    hints = get_type_hints(LayerOptions, localns={"Score": Any})  # imported for type checkers alone
    assert {*hints} == own | of_searches
    assert {*get_type_hints(AttendOptions)} == {*declared, "among", "exclude", "filter"}
    defaults = inspect.signature(Ranker).parameters
    of_collections = ("model", "match_field", "ignore_case")
    for name, (field, _) in declared.items():
        assert name in of_collections or defaults[name].default == field.default, name
    commands: Any = typer.main.get_command(app)
    for command in ("attend", "predict"):
        assert {*declared} < {one.name for one in commands.commands[command].params}


def test_a_declared_option_reaches_http_and_the_command_line() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class More(SearchOptions):
        depth: int = option(3, "depth of something", low=1, high=9)

    @with_options_of(More)
    def command(query: str, **chosen: Any) -> None:
        pass

    model: Any = model_of(More)
    assert model.model_validate({"depth": 4}).depth == 4
    with pytest.raises(ValidationError, match="use an integer from 1 to 9"):
        model.model_validate({"depth": 10})
    commands = typer.Typer()
    commands.command()(command)
    parameters = {one.name: one for one in typer.main.get_command(commands).params}
    assert parameters["depth"].opts == ["--depth"]
    assert parameters["depth"].default == 3


def test_the_defaults_of_a_search() -> None:
    """As the guide and the schema say; a search without options is this one."""
    given = {
        "limit": 10,
        "offset": 0,
        "operators": True,
        "mode": "hybrid",
        "explain": False,
        "highlight": False,
        "highlight_by": "words",
        "partial": False,
        "rerank_candidates": 50,
        "collapse": False,
        "diversity": 0.0,
        "typos": False,
    }
    options = SearchOptions()
    assert {field.name: getattr(options, field.name) for field in fields(SearchOptions)} == {
        field.name: given.get(field.name) for field in fields(SearchOptions)
    }


SHOWN_ALONE = {"limit", "offset", "cursor", "explain", "highlight", "highlight_by", "partial", "fields"}


@pytest.mark.parametrize("name", DECLARED)
def test_a_cursor_goes_on_with_the_same_ranking_alone(name: str) -> None:
    """Options that rank are part of it; those that only show are not."""
    field, about = DECLARED[name]
    plain = str(field.type).partition(" | ")[0]
    other = (
        about.choices[-1]
        if about.choices
        else {"bool": not field.default, "int": 7, "float": 0.5}.get(plain, "x")
    )
    changed = SearchOptions(**{name: other}).ranking(None) != SearchOptions().ranking(None)
    assert changed == (name not in SHOWN_ALONE)
    assert SearchOptions().ranking({"a": 1}) != SearchOptions().ranking(None)


@pytest.mark.parametrize(
    ("options", "queries", "most"),
    [
        ({"diversity": 0.5}, 32, True),
        ({"sort": "x"}, 33, False),
        ({"collapse": True}, 33, False),
        ({"group_by": "x"}, 33, False),
        ({"diversity": 0.5}, 33, False),
        ({}, 33, True),
        ({"explain": True, "limit": 100}, 10, True),
        ({"highlight": True, "limit": 1000}, 1, True),
        ({"explain": True, "limit": 100}, 11, False),
        ({"highlight": True, "limit": 101}, 10, False),
        ({"cursor": "x"}, 1, True),
        ({"cursor": "x"}, 2, False),
        ({"diversity": 1.0}, 1, True),
        ({"diversity": 1.1}, 1, False),
        ({"diversity": float("nan")}, 1, False),
        ({"sort": "x", "diversity": 0.1}, 1, False),
        ({"sort": "x", "diversity": 0.0}, 1, True),
    ],
)
def test_combinations_at_their_bounds(options: dict[str, Any], queries: int, most: bool) -> None:
    chosen = SearchOptions(**options)
    if most:
        chosen.check(["words"] * queries)
        return
    with pytest.raises(InvalidRequest):
        chosen.check(["words"] * queries)


def test_words_are_needed_unless_there_is_a_vector_which_has_none() -> None:
    with pytest.raises(InvalidRequest, match="query 1 is empty; give at least one word"):
        SearchOptions().check(["x", " \t"])
    with pytest.raises(InvalidRequest, match=r"^the query is empty"):
        SearchOptions().check([""])
    SearchOptions().check([""], vectors=True)
    with pytest.raises(InvalidRequest, match="mode='keyword' with a vector"):
        SearchOptions(mode="keyword").check(["x"], vectors=True)
    with pytest.raises(InvalidRequest, match="stages=2 with a vector"):
        SearchOptions(stages=2).check(["x"], vectors=True)
    SearchOptions(stages=1).check(["x"], vectors=True)
    SearchOptions(stages=2).check(["x"])


def test_covered_mass_is_computed_in_small_collections_unless_it_is_said() -> None:
    assert SearchOptions().covers(20_000)
    assert not SearchOptions().covers(20_001)
    assert SearchOptions(coverage=True).covers(10**9)
    assert not SearchOptions(coverage=False).covers(1)
