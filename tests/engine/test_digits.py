"""The path of scripts/examples/digits.py, smaller: a network learns through a memory of images."""

from __future__ import annotations

import importlib.util

import pytest
from support.paths import SCRIPTS

pytest.importorskip("sklearn")
SCRIPT = SCRIPTS / "examples" / "digits.py"


def test_a_memory_of_images_classifies_ahead_of_its_nearest_image() -> None:
    specification = importlib.util.spec_from_file_location("example_digits", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    untrained = example.compare(100, seed=0, steps=0)
    trained = example.compare(100, seed=0, steps=40)
    assert untrained["SearchLayer"] > 0.85
    assert trained["SearchLayer"] > max(untrained["SearchLayer"], trained["1-NN"])
