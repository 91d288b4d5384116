from __future__ import annotations

import re

import pytest

from dsearch.corpus import python_corpus, python_documents, python_judgements, read, write_python_docs
from dsearch.errors import InvalidSource

SOURCE = '''
"""The module in one line."""

class Counter(dict):
    """Count things that are hashable.

    Elements are stored as keys and their counts as values.
    """

    def most_common(self, n=None):
        """List the n most common elements.

        With n None all of them are listed.
        """

    def __missing__(self, key):
        "The count of elements not in the Counter is zero."

    def _keep(self):
        """Keep the positive counts only.

        Internal helper of the operators.
        """

if True:
    def guarded(a, /, *, b: int = 1) -> int:
        """Count things that are HASHABLE

        But this one does it behind a condition.
        """
else:
    def guarded():
        """The second definition of a name is not read.

        At all.
        """

def outer():
    def inner():
        """Inner functions are nobody's documentation.

        They are left out.
        """

def wrapped():
    """This first line goes on
    in the second one, so it is no query.
    """

def signature():
    """signature(first, second) -> list of pairs

    It only repeats how it is called.
    """

def same():
    """The module in one line

    This line is all that the module itself says.
    """

def repeated():
    """Say the same thing twice.

    Say the same thing
    twice. This entry would answer word for word.
    """

def undocumented(): pass

raise RuntimeError("the corpus is read, never imported")
'''


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "lib"
    for name in (
        "demo/__init__.py",
        "_hidden.py",
        "test/test_demo.py",
        "demo/test/x.py",
        "site-packages/y.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('"""A module of its own kind."""')
    (folder / "demo/__init__.py").write_text(SOURCE)
    (folder / "broken.py").write_text("def (")
    (folder / "with-dash.py").write_text('"""No module has such a name."""')
    return folder


def test_entries_of_a_small_library(library):
    documents = {document.id: document for document in python_corpus(library=library).documents}
    assert list(documents) == [
        "demo",
        "demo.Counter",
        "demo.Counter.__missing__",
        "demo.Counter.most_common",
        "demo.guarded",
        "demo.repeated",
        "demo.same",
        "demo.signature",
        "demo.wrapped",
    ]
    entry = documents["demo.Counter.most_common"]
    assert entry.title == "demo.Counter.most_common"
    assert entry.text == "most_common(n=None)\n\nWith n None all of them are listed."
    assert entry.metadata == {
        "kind": "method",
        "module": "demo",
        "signature": "most_common(n=None)",
        "summary": "List the n most common elements.",
        "line": 10,
    }
    kinds = {name: documents[name].metadata["kind"] for name in ("demo", "demo.Counter", "demo.guarded")}
    assert kinds == {"demo": "module", "demo.Counter": "class", "demo.guarded": "function"}
    assert documents["demo.guarded"].metadata["signature"] == "guarded(a, /, *, b: int=1)"
    assert documents["demo.Counter"].metadata["signature"] == "class Counter(dict)"
    assert documents["demo"].text == "The module in one line."
    assert (
        documents["demo.wrapped"].text
        == "wrapped()\n\nThis first line goes on\nin the second one, so it is no query."
    )


def test_private_entries_are_there_on_request(library):
    (library / "_hidden.py").write_text(
        '"""A hidden module."""\ndef shown():\n    """Its own name is public."""\n'
    )
    public = {document.id for document in python_corpus(library=library).documents}
    everything = {document.id for document in python_corpus(public_only=False, library=library).documents}
    assert everything - public == {"_hidden", "_hidden.shown", "demo.Counter._keep"}


def test_summaries_are_queries_and_equal_ones_share_their_documents(library):
    corpus = python_corpus(library=library)
    texts = {query.id: query.text for query in corpus.queries}
    assert {texts[query]: set(judged) for query, judged in corpus.qrels.items()} == {
        "Count things that are hashable.": {"demo.Counter", "demo.guarded"},
        "List the n most common elements.": {"demo.Counter.most_common"},
    }


def test_no_document_that_answers_a_summary_holds_it(library):
    """However its lines are broken, and whichever of several documents it is."""
    corpus = python_corpus(library=library)
    texts = {document.id: " ".join(document.text.split()).lower() for document in corpus.documents}
    for query in corpus.queries:
        words = query.text.lower().rstrip(".")
        assert [id for id in corpus.qrels[query.id] if words in texts[id]] == [], query


def test_no_sources_say_so(tmp_path):
    with pytest.raises(InvalidSource, match=r"no Python sources with docstrings; use a Python that has"):
        python_corpus(library=tmp_path)
    with pytest.raises(InvalidSource, match="no Python sources"):
        python_corpus(library=tmp_path / "nowhere")


@pytest.fixture(scope="module")
def real():
    return python_corpus()


def test_the_running_python_is_a_corpus_worth_searching(real):
    documents = {document.id: document for document in real.documents}
    assert 4000 < len(documents) < 9000
    assert 1200 < len(real.queries) < 5000
    assert "collections.Counter.most_common" in documents
    assert not any(re.match(r"(test|idlelib|lib2to3)\b|.*\.tests?\.", name) for name in documents)
    assert not any(
        part.startswith("_") and not part.startswith("__") for name in documents for part in name.split(".")
    )
    assert all(document.text.strip() for document in real.documents)


def test_no_relevant_document_holds_its_query(real):
    documents = {document.id: document for document in real.documents}
    for query in real.queries:
        assert real.qrels[query.id]
        for name in real.qrels[query.id]:
            assert query.text not in documents[name].text


def test_the_pieces_agree_and_survive_as_a_beir_folder(library, tmp_path):
    corpus = python_corpus(library=library)
    assert python_documents(library=library) == corpus.documents
    assert python_judgements(library=library) == (corpus.queries, corpus.qrels)
    folder = write_python_docs(tmp_path / "written", library=library)
    assert list(read(folder.path)) == corpus.documents
    assert folder.queries() == corpus.queries
    assert len(folder.qrels_path("test").read_text().splitlines()) == 1 + 3
