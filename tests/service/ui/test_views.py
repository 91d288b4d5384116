"""Every view of the page in a real browser, one journey through them, and what axe says of each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.patience import LATEST_S
from support.service.browsing import needs_chromium, opened_page
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.attention import SCORES
from dsearch.engine import SearchEngine

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = [pytest.mark.browser, needs_chromium]
expect = playwright.expect


def test_compare_shows_two_systems_and_what_moved(page: Any) -> None:
    page.goto("/#c=papers&v=compare")
    page.get_by_label("Query").fill("river stone")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".columns section")).to_have_count(2)
    moves = page.locator(".columns .parts").all_inner_texts()
    assert len(moves) == 20
    assert any(re.match(r"[▲▼] from \d+|only here|is \d+ on the right", move) for move in moves)


def test_hits_are_judged_by_keys_beside_each_other(page: Any) -> None:
    page.goto("/#c=papers&v=compare&q=river")
    hit = page.locator(".columns section").nth(1).locator(".hit").first
    hit.focus()
    page.keyboard.press("f")
    page.get_by_role("button", name="Keep them").press("Enter")
    hit.get_by_text("Kept: it fits").wait_for()
    hit.focus()
    page.keyboard.press("n")
    hit.get_by_text("Kept: it does not fit").wait_for()
    expect(hit.get_by_role("button", name="This does not fit")).to_have_attribute("aria-pressed", "true")


def test_judged_queries_are_won_and_lost_and_lead_to_the_single_query(page: Any, tmp_path: Path) -> None:
    # What keywords find first is relevant to some, what meaning finds first to the others: both win.
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    words = ["river stone", "music lamp", "cat dog", "query key", "value pool", "head softmax"]
    lines = [{"_id": f"q{i}", "text": text} for i, text in enumerate(words)]
    folder.joinpath("queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.joinpath("corpus.jsonl").write_text("not read")
    rows = []
    for i, text in enumerate(words):
        body = {"query": text, "mode": ("keyword", "dense")[i % 2], "limit": 10}
        hits = page.request.post("/v1/collections/papers/search", data=body).json()["hits"]
        rows.append(f"q{i}\t{hits[0]['id']}\t1\n")
    head = "query-id\tcorpus-id\tscore\n"
    folder.joinpath("qrels", "test.tsv").write_text(head + "".join(rows))
    folder.joinpath("qrels", "train.tsv").write_text(head + rows[0])

    page.goto("/#c=papers&v=compare")
    page.get_by_label("Left").select_option("v0 keyword")
    page.get_by_label("Right").select_option("v0 dense")
    page.get_by_label("Folder with judgements").set_input_files(folder)
    page.get_by_text("6 queries, 6 judgements, split into training and test.").wait_for()
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_text("Means; below, the difference to v0 keyword").wait_for()
    assert page.get_by_role("columnheader", name="v0 dense").count() >= 1
    groups = page.locator(".data").first.locator("td:first-child").all_inner_texts()
    assert {group.split(" ")[0] for group in groups} == {"all", "seen", "unseen"}
    page.get_by_text(re.compile(r"v0 dense wins \d+ and loses \d+ of 6 queries")).wait_for()
    lost = page.get_by_role("table", name=re.compile("Lost, nDCG@10"))
    link = lost.get_by_role("link").first
    text = link.inner_text()
    link.click()
    expect(page.locator(".columns section")).to_have_count(2)
    assert page.get_by_label("Query").input_value() == text
    page.locator(".columns section").first.get_by_text("judged relevant (1)").wait_for()
    expect(lost).to_be_visible()  # the list stays, for the next one
    page.goto("/#c=papers&v=jobs")
    page.get_by_text("evaluate · papers · done").first.wait_for()


def test_judgements_come_in_several_shapes_and_mistakes_are_named(page: Any, tmp_path: Path) -> None:
    page.goto("/#c=papers&v=train")
    chosen = page.get_by_label("Files with judgements")

    def said(name: str, text: str) -> str:
        file = tmp_path / name
        file.write_text(text)
        before = page.locator(".drop + .quiet").inner_text()
        chosen.set_input_files(file)
        expect(page.locator(".drop + .quiet")).not_to_have_text(before)
        return page.locator(".drop + .quiet").inner_text()

    assert said("a.csv", 'query,document,grade\n"one, two",d001,2\n') == "1 query, 1 judgement."
    assert said("b.tsv", "first\td001\nsecond\td002\n") == "2 queries, 2 judgements."
    assert said("c.jsonl", '{"query": "a", "document": "d001"}\n' * 2) == "1 query, 1 judgement."
    assert said("d.jsonl", '{"query": "a", "document": "d001"}\n{"query\n') == "d.jsonl, line 2: not JSON."
    assert "a line without query or document" in said("e.jsonl", '{"question": "a"}\n')
    assert said("f.csv", "query,document\nalone\n").startswith("f.csv, line 2: one column")
    assert said("g.csv", "a,d001,good\n") == "g.csv: the grade good is not a number."
    assert said("h.txt", "\n") == "No judged query was found in these files."
    assert "choose queries.tsv" in said("i.trec", "q1 0 d001 2\n")
    (tmp_path / "queries.tsv").write_text("q1\triver\n")
    chosen.set_input_files([tmp_path / "i.trec", tmp_path / "queries.tsv"])
    page.get_by_text("1 query, 1 judgement.").wait_for()


def test_files_can_be_dropped(page: Any) -> None:
    page.goto("/#c=papers&v=train")
    page.locator(".drop").wait_for()
    dropped = page.evaluate_handle(
        """() => {
          const carried = new DataTransfer();
          carried.items.add(new File(["query,document\\nriver,d001\\n"], "judged.csv"));
          return carried;
        }"""
    )
    page.locator(".drop").dispatch_event("drop", {"dataTransfer": dropped})
    page.get_by_text("1 query, 1 judgement.").wait_for()


def test_a_beir_folder_can_be_dropped(page: Any, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d001", "text": "not read"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "river"}\n{"_id": "q2", "text": "market"}\n')
    heading = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(heading + "q1\td001\t1\nq1\td002\t1\nq2\td003\t1\n")
    (folder / "qrels" / "test.tsv").write_text(heading + "q2\td004\t1\n")
    page.goto("/#c=papers&v=train")
    box = page.locator(".drop").bounding_box()
    # A real drag of a folder from outside the browser: no script can make an entry that is a directory.
    browser = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        browser.send(
            "Input.dispatchDragEvent",
            {
                "type": kind,
                "x": box["x"] + box["width"] / 2,
                "y": box["y"] + box["height"] / 2,
                "data": {"items": [], "files": [str(folder)], "dragOperationsMask": 1},
            },
        )
    page.get_by_text("2 queries, 4 judgements, split into training and test.").wait_for()


def test_a_collection_shows_figures_a_map_and_documents_that_come_and_go(page: Any, tmp_path: Path) -> None:
    page.goto("/#c=papers&v=collection")
    page.locator(".chart circle").nth(59).wait_for()
    assert page.get_by_role("cell", name="documents", exact=True).count() == 1
    page.get_by_role("cell", name=re.compile(r"recall@10 [\d.]+ as measured|Flat")).wait_for()
    page.get_by_role("cell", name=re.compile(r"0 \(0 %\)")).wait_for()  # nothing is newer than the index
    generations = page.locator("section", has=page.get_by_role("heading", name="Generations"))
    assert "answers now" in generations.inner_text()
    facets = page.locator("section", has=page.get_by_role("heading", name="Fields"))
    assert re.search(r"i\s+mostly different, such as 0, 1", facets.inner_text())
    page.get_by_label("Colour").select_option("attention")
    page.get_by_placeholder("Colour by the attention of a query").fill("river")
    page.get_by_role("button", name="Draw").click()
    page.get_by_text("60 documents nearest to “river”").wait_for()
    page.get_by_role("button", name="Rebuild the index").click()
    page.get_by_text(re.compile(r"Generation \d+ answers now")).wait_for()
    added = tmp_path / "added.txt"
    added.write_text("a page about herons")
    page.get_by_label("Files to add").set_input_files(added)
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("1 new, 0 changed, 0 unchanged.").wait_for()
    page.reload()
    page.get_by_role("button", name="Delete added.txt").click()
    page.get_by_role("button", name="Delete added.txt").click()
    expect(page.get_by_role("cell", name="added.txt", exact=True)).to_have_count(0)


def test_attention_follows_the_dials(page: Any) -> None:
    page.goto("/#c=papers&v=attend")
    shop = page.locator("section", has=page.get_by_text("In the supermarket"))
    before = shop.locator(".prediction").inner_text()
    shop.get_by_label("Pooling").select_option("hard")
    expect(shop.locator(".prediction")).not_to_have_text(before)
    assert shop.locator(".share").all_inner_texts().count("100 %") == 1
    page.get_by_label("Query").fill("river stone")
    page.get_by_role("button", name="Attend").click()
    page.locator("#view > div .bars li").first.wait_for()
    score = page.get_by_label("Score")
    compared = [name for name in SCORES if name != "exact_match"]  # which needs a field
    assert score.locator("option").all_inner_texts() == compared
    score.select_option("gaussian")
    expect(page.locator("#view > div").get_by_label("Width")).to_be_enabled()
    page.get_by_label("Predict").select_option("i")
    page.get_by_text(re.compile(r"i ≈ [\d.]+ ± [\d.]+")).wait_for()


def test_the_console_has_requests_to_copy(page: Any) -> None:
    page.goto("/#c=papers&q=river")
    page.locator(".hit").first.wait_for()
    page.get_by_role("link", name="Console").click()
    entry = page.locator("details", has_text="/v1/collections/papers/search").first
    entry.locator("summary").click()
    curl, python = entry.locator("pre").all_inner_texts()
    assert curl.startswith("curl -s -X POST")
    assert '"query":"river"' in curl
    for command in (["bash", "-c", curl], [sys.executable, "-c", python]):  # they do what the page did
        said = subprocess.run(command, capture_output=True, text=True, timeout=LATEST_S, check=True).stdout
        assert "took_ms" in said
        assert "highlights" in said


def test_what_is_copied_has_no_key_in_it(page: Any) -> None:
    page.add_init_script("sessionStorage.setItem('dsearch-key', 'secret-of-mine')")
    page.goto("/#c=papers&q=river")
    page.locator(".hit").first.wait_for()
    page.get_by_role("link", name="Console").click()
    entry = page.locator("details", has_text="/v1/collections/papers/search").first
    entry.locator("summary").click()
    curl, python = entry.locator("pre").all_inner_texts()
    assert '-H "Authorization: Bearer $DSEARCH_API_KEY"' in curl
    assert "os.environ['DSEARCH_API_KEY']" in python
    assert "secret-of-mine" not in page.content()


def test_filters_explanations_and_likeness(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto("/#c=filed&q=river1+stone2")
    page.locator(".hit").first.wait_for()
    panel = page.locator("#filters")
    expect(panel.get_by_role("group")).to_have_text(["type md 20 txt 20"])  # no path, size, date
    hits = page.locator(".hit:visible")
    panel.get_by_label("md").check()
    expect(page).to_have_url(re.compile("f=%7B%22type%22"))
    others = page.locator(".hit .id", has_text=re.compile(r"[13579]\.md|\.txt"))
    expect(others).to_have_count(0)
    page.reload()  # what is ticked is in the address
    expect(panel.get_by_label("md")).to_be_checked()
    panel.get_by_label("md").uncheck()
    expect(page).not_to_have_url(re.compile("f="))
    hits.first.wait_for()
    hits.first.locator(".why summary").click()
    page.locator(".why td").first.wait_for()
    first = hits.first.locator("h2").inner_text()
    hits.first.get_by_role("button", name="More like this").click()
    expect(page.locator("#status")).to_have_text(re.compile(rf"Like {first}\. .+"))
    assert first not in page.locator(".hit h2").all_inner_texts()


def test_the_first_screen_says_that_likelihood_needs_judged_queries(page: Any) -> None:
    page.goto("/#c=filed")
    page.get_by_text("documents to ask").wait_for()
    sentences = page.get_by_text("how likely the first is right").inner_text().split(". ")
    (said,) = [sentence for sentence in sentences if "likely" in sentence.lower()]
    assert "judged queries" in said


def test_hits_go_on_page_by_page_and_none_is_called_unlikely_without_judgements(page: Any) -> None:
    page.goto("/#c=filed&q=river1+stone2+lamp3")
    status = page.locator("#status")
    expect(status).to_have_text(re.compile("documents were scored"))
    assert "likely" not in status.inner_text()
    page.get_by_role("button", name="More hits").click()
    expect(page.locator("#hits .hit")).to_have_count(20)
    page.get_by_role("button", name="More hits").click()
    expect(page.locator("#hits .hit")).to_have_count(30)
    expect(page.locator("#less")).to_be_hidden()
    page.fill("#query", "qwxz vfrt")
    expect(status).to_have_text(re.compile("Nothing here fits this query well.*Estimated on queries made of"))
    assert page.locator("#hits .hit").count() == 0
    expect(page.locator("#less summary").first).to_have_text("Less likely (10)")


def pdf_of(text: str) -> bytes:
    """A PDF of one page with a line of text."""
    line = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(line), line),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    body, places = b"%PDF-1.4\n", list[int]()
    for number, content in enumerate(objects, start=1):
        places.append(len(body))
        body += b"%d 0 obj%s\nendobj\n" % (number, content)
    table = b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return body + table + b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(body)


def test_files_of_all_kinds_are_read_and_those_left_out_are_named(page: Any, tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    pytest.importorskip("pypdf")
    files = {
        "a.txt": b"stone",
        "old.txt": "Käse".encode("latin-1"),
        "grüße & mehr.md": b"# Hello\n\nriver",
        "page.html": b"<title>P</title><p>A page about herons that has enough words to be read.</p>",
        "paper.pdf": pdf_of("a paper about kestrels"),
        **{f"{n}.bin": b"\0" for n in range(4)},
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    letter = docx.Document()
    letter.add_paragraph("a letter about otters")
    letter.save(str(tmp_path / "letter.docx"))
    page.goto("/#c=papers&v=collection")
    page.get_by_text("A new collection", exact=True).click()
    fresh = page.locator("details", has_text="A new collection")
    fresh.get_by_label("Name of the collection").fill("mixed")
    fresh.get_by_label("Files to add").set_input_files([tmp_path / name for name in [*files, "letter.docx"]])
    fresh.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("6 documents to ask").wait_for()
    hint = page.locator("#hint")
    expect(hint).to_contain_text("6 new, 0 changed, 0 unchanged. Left out: 0.bin (files .bin are not read); ")
    expect(hint).to_contain_text("2.bin (files .bin are not read); and 1 more.")

    def text(id: str) -> str:
        return page.request.get(f"/v1/collections/mixed/documents/{quote(id)}").json()["text"]

    assert [text(id) for id in ("old.txt", "grüße & mehr.md", "letter.docx", "paper.pdf")] == [
        "Käse",
        "river",
        "a letter about otters",
        "a paper about kestrels",
    ]
    page.goto("/#c=mixed&v=jobs")
    page.get_by_role("heading", name="files · mixed · done").wait_for()
    page.locator("#view").get_by_text("6 new, 0 changed, 0 unchanged. Left out: 0.bin").wait_for()
    page.request.delete("/v1/collections/mixed")


def test_files_go_in_several_requests_and_none_is_forgotten(page: Any, tmp_path: Path) -> None:
    for n in range(103):
        (tmp_path / f"{n:03}.txt").write_text(f"stone {n}")
    page.request.put("/v1/collections/many", data={})
    page.goto("/#c=many&v=collection")
    page.get_by_label("Files to add").first.set_input_files(sorted(tmp_path.iterdir()))
    page.get_by_role("button", name="Add", exact=True).first.click()
    page.get_by_text("103 new, 0 changed, 0 unchanged.").wait_for()
    assert len(page.request.get("/v1/tasks?collection=many").json()["tasks"]) == 2
    page.request.delete("/v1/collections/many")


def test_nothing_that_can_be_read_is_a_problem(page: Any, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0")
    page.goto("/#c=papers&v=collection")
    page.get_by_label("Files to add").first.set_input_files(tmp_path / "a.bin")
    page.get_by_role("button", name="Add", exact=True).first.click()
    page.get_by_text("Nothing to add. Left out: a.bin (files .bin are not read).").wait_for()


def test_an_empty_collection_offers_to_be_filled(page: Any, tmp_path: Path) -> None:
    page.request.put("/v1/collections/bare", data={})
    (tmp_path / "a.txt").write_text("a heron")
    page.goto("/#c=bare")
    page.get_by_role("heading", name="No documents yet").wait_for()
    page.get_by_label("Files to add").set_input_files(tmp_path / "a.txt")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("1 document to ask").wait_for()
    page.request.delete("/v1/collections/bare")


def test_a_collection_is_made_named_taken_along_and_deleted(page: Any, tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    rows = ["title,price,text", '"Lamp, small",12,"a lamp"', 'Stone,3,"a ""stone"""']
    table.write_text("".join(f"{row}\n" for row in rows))
    page.goto("/#c=papers&v=collection")
    page.get_by_text("A new collection", exact=True).click()
    fresh = page.locator("details", has_text="A new collection")
    fresh.get_by_label("Name of the collection").fill("shop")
    fresh.get_by_label("Files to add").set_input_files(table)
    fresh.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("2 documents to ask").wait_for()
    found = page.request.get("/v1/collections/shop/documents").json()["documents"]
    assert {(one["title"], one["text"], one["metadata"]["price"]) for one in found} == {
        ("Lamp, small", "a lamp", 12),
        ("Stone", 'a "stone"', 3),
    }
    page.get_by_role("link", name="Collection", exact=True).click()
    page.get_by_label("Alias").fill("store")
    page.get_by_role("button", name="Add this name").click()
    page.get_by_role("button", name="Remove store").click()
    expect(page.get_by_role("button", name="Remove store")).to_have_count(0)
    with page.expect_download() as began:
        page.get_by_role("button", name="Download as JSON lines").click()
    lines = Path(began.value.path()).read_text().splitlines()
    assert {json.loads(line)["title"] for line in lines} == {"Lamp, small", "Stone"}
    page.get_by_label("Name of the collection to delete").fill("shop")
    page.get_by_role("button", name="Delete the collection").click()
    expect(page.locator("#collection option", has_text="shop")).to_have_count(0)


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("learning") / "home"
    with SearchEngine(home, encoder=WordEncoder) as made:
        made.create("papers").ingest(documents(10))
    with serving(home) as (origin, _):
        yield origin


def test_from_a_search_over_thumbs_and_training_to_a_better_answer_and_back(
    browser: Any, learning: str, tmp_path: Path
) -> None:
    judged = tmp_path / "judgements.jsonl"
    pairs = [{"query": f"zebra{i}", "document": f"d{i:03d}", "grade": 1} for i in range(10)]
    judged.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    with opened_page(browser, learning) as page:

        def share() -> float:
            """Of the attention that the right document has, summed over the queries."""
            shares = []
            for i in range(10):
                page.goto(f"/#c=papers&q=zebra{i}")
                if i == 0:
                    page.reload()
                page.settle()  # the hits are those of this query
                hit = page.locator(".hit", has=page.get_by_text(f"d{i:03d}", exact=True))
                hit.wait_for()
                shares.append(float(re.findall(r"[\d.]+", hit.locator(".share").inner_text())[0]))
            return sum(shares)

        before = share()
        page.get_by_role("button", name="This fits").first.click()
        page.get_by_role("button", name="Keep them").click()
        page.get_by_text("Kept: it fits").wait_for()

        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_label("Files with judgements").set_input_files(judged)
        page.get_by_label("Let it go live whatever held-out queries say").check()
        page.get_by_role("button", name="Train on these").click()
        page.get_by_text("v1 answers now.").wait_for()
        charts = page.locator(".charts figure")
        expect(charts).to_have_count(2)  # the loss, and beside it how held-out queries are answered
        assert "all examples" in charts.nth(0).inner_text()
        assert re.search(r"nDCG@10 of held-out queries:.*documents \d", charts.nth(1).inner_text())
        assert charts.nth(1).locator("circle").count() >= 11  # before training, and after each checkpoint
        ticks = [charts.nth(number).locator("text").all_text_contents() for number in (0, 1)]
        assert ticks[1][:3] == ["0", "0.500", "1"]  # one scale, whatever was measured
        assert ticks[0][0] == "0"
        page.get_by_text(
            re.compile(r"Headroom: of 10 queries, \d+ % are answered by the first hit")
        ).wait_for()
        page.get_by_text(re.compile(r"all: 10 held-out queries, nDCG@10 [\d.]+ → [\d.]+ \(")).wait_for()
        assert share() > before + 1
        page.goto("/#c=papers&v=jobs")
        page.get_by_text("How it went").first.click()
        expect(page.locator(".charts figure")).to_have_count(2)

        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_role("button", name="Roll back").click()
        expect(page.get_by_role("listitem", name="v0, answers now")).to_be_visible()
        assert share() == pytest.approx(before)
        page.get_by_role("link", name="Train", exact=True).click()
        page.get_by_role("button", name="Promote").click()
        expect(page.get_by_role("listitem", name="v1, answers now")).to_be_visible()
