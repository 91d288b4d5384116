"""JSON that two readers could understand differently is refused, and everything else is read as it stands."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsearch.corpus import strict_json
from dsearch.corpus.strict_json import MAX_DEPTH, AmbiguousJson, parse

TEXTS = st.text(st.sampled_from('a:b"\\{}[],é😀\n') | st.characters(codec="utf-8"), max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS


class Pairs(list[tuple[str, Any]]):
    """An object as its text has it: names may repeat."""


TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(st.tuples(st.sampled_from(["a", "b", "a:", ":", "é"]) | TEXTS, inner), max_size=4).map(
            Pairs
        )
    ),
    max_leaves=12,
)


def written(tree: Any, **options: Any) -> str:
    if isinstance(tree, Pairs):
        return f"{{{', '.join(f'{json.dumps(n, **options)}: {written(v, **options)}' for n, v in tree)}}}"
    if isinstance(tree, list):
        return f"[{','.join(written(item, **options) for item in tree)}]"
    return json.dumps(tree, **options)


def plain(tree: Any) -> Any:
    if isinstance(tree, Pairs):
        return {name: plain(value) for name, value in tree}
    return [plain(item) for item in tree] if isinstance(tree, list) else tree


def objects(tree: Any) -> Iterator[Pairs]:
    if isinstance(tree, Pairs):
        yield tree
    if isinstance(tree, list):
        for item in tree:
            yield from objects(item[1] if isinstance(tree, Pairs) else item)


@given(TREES, st.booleans(), st.booleans())
@example(Pairs([("a", "x:y"), ("a", 1)]), False, False)
@example(Pairs([("a", 1), ("b", [0.5, 2**64])]), False, False)
@example([0, -(2**63) - 1, True], False, False)
def test_a_name_twice_is_refused_and_nothing_else(tree: Any, ascii: bool, escaped: bool) -> None:
    text = written(tree, ensure_ascii=ascii)
    if escaped:  # "a:" stands in strings alone: between a name and its colon is a quotation mark
        text = text.replace("a:", "a\\u003a")
    twice = any(len(dict(pairs)) < len(pairs) for pairs in objects(tree))
    if twice:
        with pytest.raises(AmbiguousJson, match="stands twice in one object; give each name once"):
            parse(text)
    else:
        read, meant = parse(text), plain(tree)
        assert read == meant
        assert json.dumps(read) == json.dumps(meant)  # 1 and 1.0 and True are equal and not the same


def test_escaped_colons_do_not_stand_for_names() -> None:
    assert parse(r'{"a": "\u003a\u003A", "b": "\\u003a"}') == {"a": "::", "b": "\\u003a"}
    with pytest.raises(AmbiguousJson, match="the name 'a' stands twice"):
        parse(r'{"a": "\u003a", "a": "\u003a"}')
    with pytest.raises(AmbiguousJson, match="the name 'a' stands twice"):
        parse(r'{"a": 1, "b": "\u003a", "\u0061": 2}')


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, 2**64 + 1, -(2**63), -(2**63) - 1, 10**300 + 1])
@pytest.mark.parametrize("form", ["{}", "[{}]", "[0.5, {}]", '{{"a": {}}}', '["x", [{}], null]'])
def test_no_integer_is_rounded(number: int, form: str) -> None:
    text = form.format(number)
    assert json.dumps(parse(text)) == json.dumps(json.loads(text))


def test_large_floats_stay_floats() -> None:
    assert parse("[1e300, -1e19, 18446744073709551616.0]") == [1e300, -1e19, 2.0**64]
    assert math.copysign(1, parse("-0.0")) == -1


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"12345678901234567890123":'])
def test_the_depth_limit_is_exact(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    inner = "" if opening == "[" else "1"
    parse(opening * MAX_DEPTH + inner + closing * MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 990, 1020):
        with pytest.raises(AmbiguousJson, match="more than 64 levels deep; use at most 64"):
            parse(opening * depth + inner + closing * depth)


@pytest.mark.parametrize("depth", [100, 990, 1020])
def test_what_a_second_name_hides_is_refused_however_deep(depth: int) -> None:
    with pytest.raises(AmbiguousJson, match=r"stands twice in one object|more than 64 levels deep"):
        parse('{"a": ' + "[" * depth + "]" * depth + ', "a": 1}')


def test_the_name_that_stands_twice_is_looked_for_once_in_each_name() -> None:
    """Each name was compared with all the others: an object of 8 MiB took hours."""

    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    pairs = [(Name(f"n{i}"), 0) for i in range(3000)] + [(Name("n2999"), 1)]
    with pytest.raises(AmbiguousJson, match="the name 'n2999' stands twice"):
        strict_json._READER.object_pairs_hook(pairs)  # pyright: ignore[reportPrivateUsage]
    assert Name.compared < 10 * len(pairs)
