"""The conftest's hook is at work: a wrong shape is refused by the signature, not by luck further down."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from support import shape_hook

import dsearch.attention as attention
from dsearch.attention.pooling import pool


def test_a_wrong_shape_is_refused_by_the_signature(monkeypatch):
    monkeypatch.setattr(shape_hook, "one_of", 1)  # however often others called it
    with pytest.raises(jaxtyping.TypeCheckError):
        pool(torch.ones(2, 3), torch.ones(4, 5))


def test_every_public_name_is_there_and_documented():
    for name in attention.__all__:
        thing = getattr(attention, name)
        if callable(thing) and name != "Score":
            assert thing.__doc__, name


def test_torch_and_the_standard_library_are_all_that_is_imported():
    import subprocess
    import sys

    code = "import sys, dsearch.attention; print({'faiss', 'matplotlib', 'sklearn'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"
