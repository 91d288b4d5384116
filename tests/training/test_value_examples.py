"""Documents whose values can be learned: kinds of values, labels, what is left out or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.training.valued import with_values

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.training import value_examples
from dsearch.types import Document

COUNT = 12


def test_what_is_true_or_false_is_a_label_and_labels_are_in_order(engine: SearchEngine) -> None:
    """A set's order differs between processes, and with it the meaning of a column in a resumed training."""
    truths = value_examples(with_values(engine, "truths", [n % 3 == 0 for n in range(COUNT)]), "f")
    assert (truths.kind, truths.labels) == ("label", (False, True))
    assert truths.values[:3].tolist() == [[0, 1], [1, 0], [1, 0]]
    names = [f"k{n % 6}" for n in range(COUNT)]
    named = value_examples(with_values(engine, "names", names), "f")
    assert named.labels == ("k0", "k1", "k2", "k3", "k4", "k5")


def test_a_label_stands_for_several_documents_and_a_changed_value_is_other_data(engine: SearchEngine) -> None:
    labels = [f"k{n % 6}" for n in range(COUNT)]
    changed = [*labels[:3], "k4", *labels[4:]]
    digests = [
        value_examples(with_values(engine, name, values), "f").digest
        for name, values in (("one", labels), ("same", labels), ("other", changed))
    ]
    assert digests[0] == digests[1] != digests[2]
    with_seven = with_values(engine, "more", [f"k{n % 7}" for n in range(COUNT)])
    with pytest.raises(InvalidRequest, match="7 different 'f' in 12 documents"):
        value_examples(with_seven, "f")


def test_vectors_of_several_lengths_are_of_several_kinds(engine: SearchEngine) -> None:
    made = with_values(engine, "t", [[float(n)] * (2 if n else 3) for n in range(COUNT)])
    with pytest.raises(InvalidRequest, match="make it of one kind"):
        value_examples(made, "value")


def test_documents_without_the_field_are_counted_and_left_out(engine: SearchEngine) -> None:
    made = engine.create("t")
    of_none = [Document(f"x{n}", f"word{n} of none") for n in range(3)]
    others = [Document(f"d{n}", f"word{n} about{n % 3}", metadata={"f": float(n)}) for n in range(COUNT)]
    made.ingest([*of_none, *others])
    made.delete(["d11"])
    examples = value_examples(made, "f")
    assert examples.left_out == {"documents without the field": 3}
    assert examples.texts == [f"word{n} about{n % 3}" for n in range(COUNT - 1)]
    values = examples.values[:, 0] * examples.scale[0] + examples.centre[0]
    np.testing.assert_allclose(values, np.arange(COUNT - 1), atol=1e-4)


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_learned_from_is_refused(collection: Collection) -> None:
    def again(**metadata: Any) -> None:
        collection.ingest(Document(f"d{i}", f"x{i}", metadata=dict(metadata)) for i in range(16))

    with pytest.raises(InvalidRequest, match=r"the field 'price' is in 0 documents .*; at least 10"):
        value_examples(collection, "price")
    again(number=5, kind="a")
    with pytest.raises(InvalidRequest, match="the same 'number'"):
        value_examples(collection, "number")
    with pytest.raises(InvalidRequest, match="the same 'kind'"):
        value_examples(collection, "kind")
    collection.ingest(Document(f"d{i}", text=f"y{i}", metadata={"kind": f"k{i}"}) for i in range(16))
    with pytest.raises(InvalidRequest, match="16 different 'kind' in 16 documents"):
        value_examples(collection, "kind")
    collection.ingest([Document("d0", text="z", metadata={"kind": 3})])
    with pytest.raises(InvalidRequest, match="make it of one kind"):
        value_examples(collection, "kind")


@pytest.mark.usefixtures("unchecked")
def test_a_number_that_is_the_same_everywhere_tells_nothing_apart(collection: Collection) -> None:
    """Of 3.7 twelve times the mean is not 3.7, and the deviation not 0."""
    price = {"price": 3.7}
    collection.ingest(Document(f"d{i}", f"x{i}", metadata=price, value=[i, 3.7]) for i in range(12))
    with pytest.raises(InvalidRequest, match="every document has the same 'price'"):
        value_examples(collection, "price")
    sizes = value_examples(collection, "value")
    np.testing.assert_allclose(sizes.scale, [np.std(range(12)), 1.0], rtol=1e-6)  # each number has its own
    np.testing.assert_allclose(sizes.values[:, 1], 0.0, atol=1e-6)
