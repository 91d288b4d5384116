"""The guides can be searched: by the command, and at /guide, without an encoder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.service.apps import patient_app

from dsearch.cli import main
from dsearch.engine import SearchEngine
from dsearch.guide.search import Section, anchor_of, search_guides, sections_of


@pytest.mark.parametrize(
    ("query", "topic"),
    [
        ("rollback to the version before", "training"),
        ("claude desktop mcp servers", "integrations"),
        ("group_by diversity", "finding"),
        ("systemd unit hardening", "operating"),
        ("shards on ray", "scaling"),
    ],
)
def test_a_question_finds_its_guide(query: str, topic: str) -> None:
    assert topic in [section.topic for section in search_guides(query)]
    assert search_guides("zzzyx qqqv") == []


def test_sections_are_the_headings_outside_of_code() -> None:
    headings = [section.heading for section in sections_of("operating")]
    assert len(headings) == len(set(headings))
    assert anchor_of("Keys, and `scopes`") == "keys-and-scopes"


def test_a_snippet_is_prose_without_signs() -> None:
    text = (
        "See `train`, *not* [the guide](training.md) ![x](x.png) 2 * 3.\n\n```python\nhit = 1\n```\n\nMore."
    )
    assert Section("a", "A", text).snippet == "See train, not the guide 2 * 3. More."
    assert Section("a", "A", "```sh\ndsearch demo\n```").snippet == "sh dsearch demo"
    cut = Section("a", "A", "word " * 100).snippet
    assert cut.endswith("word …")
    assert len(cut) <= 202
    for section in search_guides("train from clicks on judged queries", 20):
        assert "`" not in section.snippet, section.heading


def test_the_command_searches_or_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*words: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["dsearch", "guide", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return capsys.readouterr()

    assert "finding: " in said("group_by", "diversity")[0]
    assert not said("finding", "diversity")[0].startswith("# ")  # words, though the first is a topic
    sections = json.loads(said("diversity", "--json")[0])
    assert {"topic", "heading", "text"} == set(sections[0])
    assert json.loads(said("--json")[0])[0]["topic"] == "concepts"
    assert json.loads(said("finding", "--json")[0])["text"].startswith("# ")
    assert "no guide has these words" in said("zzzyx")[1]


def test_the_pages_have_a_field_whose_results_lead_to_headings(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home") as engine, TestClient(patient_app(engine)) as client:
        client.base_url = "http://127.0.0.1"  # type: ignore[assignment]
        answer = client.get("/guide", params={"q": 'group_by "<b>'})
        assert "form-action 'self'" in answer.headers["Content-Security-Policy"]
        assert "<b>" not in answer.text.replace("<br>", "")
        links = re.findall(r'<ol><li><a href="/guide/([a-z-]+)#([\w-]+)"', answer.text)
        topic, anchor = links[0]
        assert f'id="{anchor}"' in client.get(f"/guide/{topic}").text
        assert 'name="q"' in client.get("/guide").text
