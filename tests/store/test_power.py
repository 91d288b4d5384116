"""Power cuts, by the model in power_loss.py: what was acknowledged is there, nothing is torn or dangling."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.sizes import by_size
from support.store import power_loss

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace records the calls"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("recorded") / "home"


@pytest.fixture(scope="module")
def calls(home) -> power_loss.Calls:
    home.mkdir()
    return power_loss.record(home, home.with_name("trace"))


def test_what_a_power_cut_leaves_is_a_state_before_or_after_a_step(home, calls, tmp_path):
    checked = 0
    every, least = by_size((17, 250), (5, 1000))
    for cut in power_loss.states(calls, home, every=every, draws=2):
        power_loss.check(cut, tmp_path / "after")
        checked += 1
    assert checked >= least
