"""Ids are random, alike in form and never the same, in threads and after a fork."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsearch.service.wire.json import new_id


def test_no_two_are_the_same_in_any_thread() -> None:
    def many(_: int) -> list[str]:
        return [new_id() for _ in range(2_000)]

    with ThreadPoolExecutor(8) as pool:
        made = [one for part in pool.map(many, range(8)) for one in part]
    assert len(set(made)) == len(made) == 16_000
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_makes_its_own() -> None:
    new_id()  # so that some are in stock
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 64).decode()
    assert len(theirs) == 32
    assert theirs != new_id()
