"""Parquet, Arrow, saved datasets, HTML, PDF, patterns: tiny real files, made here."""

from __future__ import annotations

import gzip
import io
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from dsearch.corpus import Problems, RecordFields, read, read_sources
from dsearch.errors import InvalidSource, MissingExtra
from dsearch.store import refusal
from dsearch.types import Document

PARAGRAPH = "A sentence about turbines that is long enough to be the content of a page. " * 6


def gathered(source, **options):
    problems = Problems()
    return list(read(source, problems=problems, **options)), [str(problem) for problem in problems.first]


# --- Parquet and Arrow


def table(**columns):
    return pytest.importorskip("pyarrow").table(columns)


def write_parquet(path: Path, written, **options) -> Path:
    pytest.importorskip("pyarrow.parquet").write_table(written, path, **options)
    return path


def test_parquet_has_value_and_metadata(tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet",
        table(
            id=[1, 2],
            title=["T", None],
            text=["one", "two"],
            value=[[0.5, 1.0], None],
            year=[1999, None],
            price=[float("nan"), 1.5],
            exact=[Decimal("1.25"), Decimal("2.50")],
            at=[datetime(2020, 1, 2, tzinfo=UTC), None],
            tags=[["a", "b"], []],
            raw=[b"\x00", b"\x01"],
        ),
    )
    one, two = read(path)
    at = "2020-01-02T00:00:00+00:00"
    assert one == Document(
        "1",
        "one",
        "T",
        {"year": 1999, "price": None, "exact": 1.25, "at": at, "tags": ["a", "b"]},  # bytes are left out
        [0.5, 1.0],
    )
    assert (two.title, two.value, two.metadata["year"]) == ("", None, None)
    assert refusal(one) is None


def test_a_bad_row_of_parquet_is_told_and_costs_only_itself(tmp_path):
    texts = ["x"] * 2500
    texts[1700] = ""
    path = write_parquet(
        tmp_path / "a.parquet", table(id=list(map(str, range(2500))), text=texts), row_group_size=700
    )
    documents, problems = gathered(path)
    assert len(documents) == 2499
    assert problems == [f"{path}:1701: empty: neither title nor text says anything"]
    with pytest.raises(InvalidSource, match=r"a\.parquet:1701: empty"):
        list(read(path, problems=Problems(strict=True)))


def test_damaged_parquet_is_one_problem(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", table(id=["1"], text=["x" * 1000]))
    path.write_bytes(path.read_bytes()[:-20])
    documents, problems = gathered(path)
    assert documents == []
    assert len(problems) == 1
    assert "a.parquet:1: cannot be read from here on" in problems[0]


@pytest.mark.parametrize("form", ["new_stream", "new_file"])
def test_arrow_files(tmp_path, form):
    ipc = pytest.importorskip("pyarrow.ipc")
    rows = table(id=["a", "b"], text=["one", "two"])
    with getattr(ipc, form)(str(tmp_path / "a.arrow"), rows.schema) as file:
        file.write_table(rows)
    assert list(read(tmp_path / "a.arrow")) == [Document("a", "one"), Document("b", "two")]


def test_a_dataset_that_was_saved_to_disk(tmp_path):
    """Written by Hugging Face's own library where there is one, so that the layout is theirs."""
    datasets = pytest.importorskip("datasets", reason="writes the layout that is read here")
    train = datasets.Dataset.from_dict({"id": ["a", "b"], "text": ["one", "two"], "label": [0, 1]})
    test = datasets.Dataset.from_dict({"id": ["c"], "text": ["three"], "label": [1]})
    train.save_to_disk(tmp_path / "one", num_shards=2)
    assert list(read(tmp_path / "one")) == [
        Document("a", "one", metadata={"label": 0}),
        Document("b", "two", metadata={"label": 1}),
    ]
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "both")
    assert [document.id for document in read(tmp_path / "both")] == ["a", "b", "c"]
    next((tmp_path / "both" / "test").glob("*.arrow")).unlink()
    with pytest.raises(InvalidSource, match=r"missing, though state\.json names it"):
        read(tmp_path / "both")


def test_a_dataset_cannot_name_files_elsewhere(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../../etc/passwd"}]}')
    with pytest.raises(InvalidSource, match="not a whole saved dataset"):
        read(tmp_path)


# --- HTML and PDF


def html(title: str, body: str) -> bytes:
    return (
        f"<html><head><title>{title}</title></head><body><nav><a href='/'>Home</a></nav>"
        f"<article><h1>{title}</h1><p>{body}</p></article><script>var hidden = 1;</script></body></html>"
    ).encode()


def pdf(text: str, title: str = "") -> bytes:
    """A PDF of one page, by hand."""
    shown = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        page + b" << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(shown), shown),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>".encode(),
    ]
    out, places = io.BytesIO(b"%PDF-1.4\n"), []
    out.seek(0, io.SEEK_END)
    for number, content in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, content))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for place in places:
        out.write(b"%010d 00000 n \n" % place)
    out.write(
        b"trailer\n<< /Size %d /Root 1 0 R /Info 6 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (len(objects) + 1, start)
    )
    return out.getvalue()


def test_html_is_its_main_text(tmp_path):
    pytest.importorskip("trafilatura")
    (tmp_path / "page.html").write_bytes(html("Turbines", PARAGRAPH))
    (tmp_path / "short.htm.gz").write_bytes(gzip.compress(html("Short", "Two words.")))
    (tmp_path / "empty.html").write_bytes(b" ")
    documents, problems = gathered(tmp_path)
    assert [(document.id, document.title) for document in documents] == [
        ("page.html", "Turbines"),
        ("short.htm.gz", "Short"),
    ]
    assert "about turbines" in documents[0].text
    assert "Home" not in documents[0].text
    assert "hidden" not in documents[0].text
    assert "Two words." in documents[1].text
    assert problems == [f"{tmp_path / 'empty.html'}: empty: the file says nothing"]


def test_pdf_is_the_text_of_its_pages(tmp_path):
    pytest.importorskip("pypdf")
    (tmp_path / "a.pdf").write_bytes(pdf("Blades of turbines", "On turbines"))
    (tmp_path / "b.pdf").write_bytes(pdf("No title"))
    one, two = read(tmp_path)
    assert (one.id, one.text, one.title) == ("a.pdf", "Blades of turbines", "On turbines")
    assert (two.id, two.text, two.title) == ("b.pdf", "No title", "b")
    assert (one.metadata["pages"], one.metadata["type"]) == (1, "pdf")


def test_bad_pdfs_cost_only_themselves(tmp_path):
    pypdf = pytest.importorskip("pypdf")
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    (tmp_path / "b.pdf").write_bytes(pdf(""))
    writer = pypdf.PdfWriter(io.BytesIO(pdf("secret")))
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(tmp_path / "c.pdf")
    (tmp_path / "d.pdf").write_bytes(pdf("fine"))
    documents, problems = gathered(tmp_path)
    assert [document.id for document in documents] == ["d.pdf"]
    assert [problem.split(": ")[1] for problem in problems] == [
        "not a PDF that can be read",
        "no text on 1 page",
        "encrypted with a password; save it without",
    ]


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("a.parquet", "pyarrow.parquet", r"Parquet files need pyarrow, .*pip install 'dsearch\[parquet\]'"),
        ("a.arrow", "pyarrow.ipc", r"Arrow files need pyarrow, .*pip install 'dsearch\[parquet\]'"),
        ("a.html", "trafilatura", r"HTML files need trafilatura, .*pip install 'dsearch\[files\]'"),
        ("a.pdf", "pypdf", r"PDF files need pypdf, .*pip install 'dsearch\[files\]'"),
    ],
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, name, module, message):
    monkeypatch.setitem(sys.modules, module, None)  # what an import of a package that is not there does
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "there.txt").write_text("text")
    with pytest.raises(MissingExtra, match=message):
        list(read(tmp_path / name))
    documents, problems = gathered(tmp_path)
    assert [document.id for document in documents] == ["there.txt"]
    assert problems[0].startswith(f"{tmp_path / name}: ")
    assert "pip install" in problems[0]


# --- patterns, mixed folders, values, refusals


def test_patterns(tmp_path):
    for name in ("notes/a.md", "notes/deep/er/b.md", "notes/.hidden/c.md", "notes/d.txt", "notes/e.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    assert [document.id for document in read(f"{tmp_path}/notes/**/*.md")] == ["a.md", "deep/er/b.md"]
    assert [document.id for document in read(f"{tmp_path}/n*/*")] == ["notes/a.md", "notes/d.txt"]
    with pytest.raises(InvalidSource, match="1 file matches and none can be read"):
        read(f"{tmp_path}/**/*.png")
    with pytest.raises(InvalidSource, match="0 files match"):
        read(f"{tmp_path}/nowhere/*")


def test_a_file_with_the_very_name_of_a_pattern_is_that_file(tmp_path):
    (tmp_path / "a[1].txt").write_text("one")
    (tmp_path / "a1.txt").write_text("other")
    assert [document.text for document in read(str(tmp_path / "a[1].txt"))] == ["one"]


def test_mixed_folders_say_what_was_passed_over(tmp_path):
    pytest.importorskip("pypdf")
    pytest.importorskip("trafilatura")
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.pdf").write_bytes(pdf("page"))
    (tmp_path / "c.html").write_bytes(html("T", PARAGRAPH))
    (tmp_path / "d.png").write_bytes(b"\x89PNG")
    (tmp_path / "e.txt").write_bytes(b"\x7fELF\x00\xff\xfe")
    (tmp_path / ".secret.txt").write_text("hidden")
    problems = Problems()
    assert [d.id for d in read(tmp_path, problems=problems)] == ["a.txt", "b.pdf", "c.html"]
    assert problems.passed_over == {".png": 1}
    assert "e.txt:1: byte 6 (0xff) is not UTF-8" in str(problems.first[0])


def test_a_table_with_line_ends_of_old_macs_is_a_problem(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"id,text\r1,x\r")
    problems = Problems()
    assert list(read(tmp_path / "a.csv", problems=problems)) == []
    assert "a.csv:1: broken header" in str(problems.first[0])


def test_a_malformed_ignore_pattern_ignores_nothing(tmp_path):
    (tmp_path / ".gitignore").write_text("!\nx\\\n[z-a]\nno.txt\n")
    for name in ("yes.txt", "no.txt"):
        (tmp_path / name).write_text("text")
    assert [document.id for document in read(tmp_path)] == ["yes.txt"]


def test_a_link_that_leads_to_itself_costs_only_itself(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    problems = Problems()
    assert [document.id for document in read(tmp_path, problems=problems)] == ["a.txt"]
    assert problems.sources == {str(tmp_path / "loop.txt")}


def test_values_in_cells(tmp_path):
    (tmp_path / "a.csv").write_text(
        'id,text,mark\n1,a,2.5\n2,b,"[0.5, 1]"\n3,c,\n4,d,"[0.5,"\n5,e,"[""x""]"\n'
    )
    documents, problems = gathered(tmp_path / "a.csv", fields=RecordFields(value="mark"))
    assert [document.value for document in documents] == [2.5, [0.5, 1.0], None]
    assert [problem.split(": ", 1)[1] for problem in problems] == [
        "value '[0.5,' is not a list of numbers",
        "value 'x' is not a finite number or a list of them",
    ]


def test_lists_without_end_in_a_cell(tmp_path):
    (tmp_path / "a.csv").write_text(f"id,text,value\n1,a,{'[' * 1000}{']' * 1000}\n2,b,1\n")
    documents, problems = gathered(tmp_path / "a.csv")
    assert [document.id for document in documents] == ["2"]
    assert problems[0].endswith(
        "a.csv:2: value a list that nests too deep is not a finite number or a list of them"
    )


def test_what_the_store_would_refuse_is_told_with_its_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"_id": "a", "text": "x"}\n'
        f'{{"_id": "b", "text": "{"x" * (1 << 21)}"}}\n'
        f'{{"_id": "{"c" * 600}", "text": "x"}}\n'
    )
    problems = Problems()
    documents = list(read_sources([tmp_path / "a.jsonl"], problems=problems, refuse=refusal))
    assert [document.id for document in documents] == ["a"]
    assert [str(problem).split(".jsonl")[1] for problem in problems.first] == [
        ":2: the document has 2097152 bytes of text; at most 1048576",
        ":3: the document has 600 bytes of id; at most 512",
    ]
