"""The hook that checks shapes in tests: where it checks, and where it need not check again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jaxtyping
import numpy as np
import pytest
import torch
from support import shape_hook
from support.shape_checks import EVERY, key_of
from support.shape_hook import PACKAGES, Finder

MODULE = '''
from __future__ import annotations
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from nowhere import Unknown

Rows = Float[Tensor, "rows dim"]
calls = []

def summed(rows: Rows, weights: Float[Tensor, " rows"]) -> Float[Tensor, " dim"]:
    calls.append(len(rows))
    return weights @ rows

def transposed(rows: Rows, how: bool) -> Rows:
    """As long as it is wide, or refused."""
    return rows.T if how else rows

def cut(rows: Rows, samples: int) -> Float[Tensor, "{samples} dim"]:
    return rows[:2]

def joined(parts: list[Rows]) -> Rows:
    return parts[0]

def within(rows: Rows) -> Callable[..., Tensor]:
    def inner(other: Float[Tensor, " dim"]) -> Tensor:
        return other
    return inner

def plain(text: str) -> int:
    return text

def for_checkers_only(what: Unknown, rows: Rows) -> None: ...

@dataclass(frozen=True)
class Pair:
    keys: Rows
    values: Float[Tensor, " rows"]

    @property
    def first(self) -> Float[Tensor, " dim"]:
        return self.keys

@dataclass(frozen=True)
class Numbers:
    values: int

@dataclass(frozen=True)
class Weights:
    values: Float[Tensor, " rows"]

class Layers(dict[str, Float[Tensor, " holding"]]):

    def under(self, last: Float[Tensor, " holding"]) -> Layers:
        return Layers(self, last=last)

class Bare:
    def __init__(self, rows: Rows) -> None:
        self.rows = rows
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`MODULE`, imported through the hook."""
    name = "dsearch.attention.sample"
    (tmp_path / "sample.py").write_text(MODULE)
    spec = Finder().find_spec(name, [str(tmp_path)])
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, made)
    spec.loader.exec_module(made)
    return made


def refused() -> pytest.RaisesExc[jaxtyping.TypeCheckError]:
    return pytest.raises(jaxtyping.TypeCheckError)


def test_arguments_are_checked_before_the_call_however_often_others_passed(module: ModuleType) -> None:
    for _ in range(3):
        assert module.summed(torch.ones(3, 2), torch.ones(3)).tolist() == [3, 3]
        with refused():
            module.summed(torch.ones(3, 2), torch.ones(4))
        with refused():
            module.summed(torch.ones(3, 2, dtype=torch.int64), torch.ones(3))
    assert module.calls == [3, 3, 3]


@pytest.mark.parametrize("one_of", [8, 1], ids=["one of eight", "every one, by --nightly"])
def test_later_calls_are_checked_now_and_then(
    one_of: int, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shape_hook, "one_of", one_of)
    for _ in range(EVERY):
        module.summed(torch.ones(3, 2), torch.ones(3))
    noticed = 0
    for _ in range(16):
        try:
            module.summed(torch.ones(3, 2), torch.ones(4))
        except jaxtyping.TypeCheckError:
            noticed += 1
        except RuntimeError:  # torch's own: the call was not checked
            pass
    assert noticed == 16 / one_of


def test_a_traced_call_is_not_checked(module: ModuleType) -> None:
    """A check reads sizes, which become a part of the graph: one graph of eight would differ."""

    def traced(rows: torch.Tensor) -> torch.Tensor:
        return module.transposed(rows, True)

    rows = torch.zeros(3, 2)
    assert "aten::size" not in str(torch.jit.trace(traced, (rows,), check_trace=False).graph)
    with pytest.raises(jaxtyping.TypeCheckError):
        traced(rows)


def test_a_result_is_checked_though_its_arguments_passed_before(module: ModuleType) -> None:
    passed = torch.ones(2, 2)
    assert module.transposed(passed, True) is not None
    assert module.transposed(torch.ones(3, 2), False) is not None
    with refused():
        module.transposed(torch.ones(3, 2), True)
    with refused():
        module.transposed(torch.ones(3, 2), True)


def test_a_number_in_a_shape_counts(module: ModuleType) -> None:
    assert module.cut(torch.ones(3, 2), 2) is not None
    with refused():
        module.cut(torch.ones(3, 2), 1)


def test_lists_functions_within_functions_and_properties_are_checked(module: ModuleType) -> None:
    assert module.joined([torch.ones(3, 2)]) is not None
    with refused():
        module.joined([torch.ones(3)])
    for _ in range(2):
        inner = module.within(torch.ones(3, 2))
        inner(torch.ones(2))
        with refused():
            inner(torch.ones(2, 2))
    with refused():
        _ = module.Pair(torch.ones(3, 2), torch.ones(3)).first
    module.Bare(torch.ones(3, 2))
    with refused():
        module.Bare(torch.ones(3))


def test_fields_of_a_dataclass_are_checked(module: ModuleType) -> None:
    for _ in range(2):
        module.Pair(torch.ones(3, 2), torch.ones(3))
        with refused():
            module.Pair(torch.ones(3, 2), torch.ones(2))


def test_dataclasses_with_the_same_names_of_fields_are_told_apart(module: ModuleType) -> None:
    assert module.Numbers(3).values == 3
    module.Weights(torch.ones(3))
    with refused():
        module.Weights(torch.ones(3, 2))


def test_the_class_around_a_method_is_not_looked_into(module: ModuleType) -> None:
    """jaxtyping resolves annotations when a method is defined; its class is not there yet."""
    layers = module.Layers(first=torch.ones(3))
    assert len(layers.under(torch.ones(2))) == 2


def test_unresolved_annotations_leave_the_others_checked(module: ModuleType) -> None:
    module.for_checkers_only("anything", torch.ones(3, 2))
    with refused():
        module.for_checkers_only("anything", torch.ones(3))


def test_functions_without_shapes_are_as_written(module: ModuleType) -> None:
    assert module.plain("text") == "text"
    assert not hasattr(module.plain, "__wrapped__")
    assert hasattr(module.summed, "__wrapped__")


def test_unchecked_is_unchecked(module: ModuleType, unchecked: None) -> None:
    assert module.transposed(torch.ones(3, 2), True).shape == (2, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2, 3), torch.ones(3, 2)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), np.ones(2, np.float32)),
        ([torch.ones(2)], (torch.ones(2),)),
        ([torch.ones(2)], [torch.ones(3)]),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}),
        (1, True),
        (2, 3),
        ("exact", "approximate"),
        (int, str),
        (None, 0),
    ],
)
def test_keys_differ_where_a_check_may(one: object, other: object) -> None:
    assert key_of(one) != key_of(other)
    assert key_of(one) == key_of(one) is not None


def test_long_lists_have_no_key() -> None:
    assert key_of([torch.ones(2)] * 1000) is None
    assert key_of(([1] * 1000, 1)) is None


def test_every_package_with_shapes_is_listed() -> None:
    root = Path(sys.modules["dsearch"].__file__ or "").parent
    with_shapes = {
        f"dsearch.{path.relative_to(root).with_suffix('').parts[0]}"
        for path in root.rglob("*.py")
        if "from jaxtyping import" in path.read_text(encoding="utf-8")
    }
    assert with_shapes <= set(PACKAGES)
