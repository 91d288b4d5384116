"""Guides as they are read: on the command line and in a browser."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from dsearch.cli.grouped_help import app
from dsearch.errors import NotFound
from dsearch.guide import guide, guides


def test_every_guide_has_a_title_and_is_found():
    listed = guides()
    assert [one.topic for one in listed][:1] == ["concepts"]
    for one in listed:
        assert guide(one.topic).startswith(f"# {one.title}\n")


def test_an_unknown_topic_names_those_there_are():
    with pytest.raises(NotFound, match="no guide 'nothing'; there are concepts, "):
        guide("nothing")


def test_a_topic_is_never_a_path():
    with pytest.raises(NotFound):
        guide("../../README")


def test_the_command_lists_and_prints():
    listed = CliRunner().invoke(app, ["guide"])
    assert listed.exit_code == 0
    assert re.search(r"^concepts +\S", listed.stdout, re.MULTILINE)
    printed = CliRunner().invoke(app, ["guide", "concepts"])
    assert printed.stdout == guide("concepts")
