"""Options that several commands share: vectors, filters, lists, and collections of a group."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.cli.options import as_flag, field_names, filter_of, names_in, of_group, vector_of, vectors_of
from dsearch.errors import InvalidRequest


def test_vectors_are_json_or_a_file(tmp_path: Path) -> None:
    assert vectors_of(None) is None
    assert vector_of(None) is None
    assert vectors_of(" [[1, 2], [3, 4]]") == [[1.0, 2.0], [3.0, 4.0]]
    assert vectors_of("[1, 2]") == [[1.0, 2.0]]
    assert vector_of("[0.1]") == [0.1]  # with all of its digits
    (tmp_path / "a.json").write_text("[[0.25]]")
    np.save(tmp_path / "a.npy", np.array([0.5, 0.125], np.float32))
    assert vectors_of(str(tmp_path / "a.json")) == [[0.25]]
    assert vector_of(str(tmp_path / "a.npy")) == [0.5, 0.125]


@pytest.mark.parametrize(
    "text", ["[1, x]", "[[1], [1, 2]]", '["a"]', "nowhere.json", "nowhere.npy", "[null]", "[]x", '[{"a": 1}]']
)
def test_what_is_no_vector_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        vectors_of(text)
    assert text[:20] in str(refused.value) or "vectors" in str(refused.value)


def test_several_vectors_are_not_one() -> None:
    with pytest.raises(InvalidRequest, match=r"vector='\[\[1\], \[2\]\]' holds 2 vectors; give one"):
        vector_of("[[1], [2]]")


class Opens:
    """What runs code where it is unpickled."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([Opens(tmp_path / "ran")], object), allow_pickle=True)
    with pytest.raises(InvalidRequest, match="is no vector"):
        vectors_of(str(tmp_path / "a.npy"))
    assert not (tmp_path / "ran").exists()


def test_a_filter_is_json() -> None:
    assert filter_of(None) is None
    assert filter_of('{"year": 1}') == {"year": 1}
    with pytest.raises(InvalidRequest, match=r"--filter '\{year' is not JSON .* in single quotes"):
        filter_of("{year")
    with pytest.raises(InvalidRequest, match="is not JSON"):
        filter_of("[" * 100_000)
    with pytest.raises(InvalidRequest) as refused:
        filter_of("{" + "x" * 500)
    assert "x" * 80 not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "names"), [("", []), ("a", ["a"]), (" a , b,, ", ["a", "b"]), ("a b", ["a b"])]
)
def test_names_are_separated_by_commas(text: str, names: list[str]) -> None:
    assert names_in(text) == names


@pytest.mark.parametrize(
    ("texts", "names"), [(None, None), ([], None), ([""], []), (["a, b", "c"], ["a", "b", "c"])]
)
def test_names_of_several_lists_are_one_list(texts: list[str] | None, names: list[str] | None) -> None:
    assert field_names(texts) == names


def test_a_command_of_a_group_has_its_own_options_or_the_groups() -> None:
    context: Any = SimpleNamespace(obj=("papers", Path("here")))
    assert of_group(context, None, None) == ("papers", Path("here"))
    assert of_group(context, "notes", None) == ("notes", Path("here"))
    assert of_group(context, None, Path("there")) == ("papers", Path("there"))


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("scope", "full", "--scope full"),
        ("source", "feedback", "--from feedback"),
        ("judgements", {}, "--data"),
        ("trusted_keys", ["a"], "--trusted-keys"),
        ("learning_rate", None, "--learning-rate"),
        ("compiled", True, "--compile"),
    ],
)
def test_an_option_is_spelled_as_it_is_typed(name: str, value: Any, flag: str) -> None:
    assert as_flag(name, value) == flag
