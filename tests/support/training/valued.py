"""Collections whose documents have values to learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

DIMENSION, COUNT = 12, 240


def with_values(engine: SearchEngine, name: str, values: list[Any]) -> Collection:
    """Documents with these values in field `f`, and as their own if they are vectors."""
    made = engine.create(name)
    field = {"value": values} if isinstance(values[0], list) else {}
    made.ingest(
        Document(
            f"d{n}", f"word{n} about{n % 3}", metadata={"f": value}, **({"value": value} if field else {})
        )
        for n, value in enumerate(values)
    )
    return made


def plane_in(engine: SearchEngine, name: str = "plane") -> Collection:
    """A number that is linear in the embedding but for noise, and the side of the middle it is on."""
    generator = np.random.default_rng(0)
    states = generator.standard_normal((COUNT, DIMENSION))
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    numbers = 50 + 10 * states @ generator.standard_normal(DIMENSION) + 8 * generator.standard_normal(COUNT)
    made = engine.create(name, dimension=DIMENSION)
    documents = [
        Document(
            f"d{n}",
            f"row {n}",
            metadata={"number": float(y), "side": "high" if y > 50 else "low"},
            value=[float(x) for x in states[n, ::-1]],
        )
        for n, y in enumerate(numbers)
    ]
    made.upsert(documents, states.astype(np.float32))
    return made
