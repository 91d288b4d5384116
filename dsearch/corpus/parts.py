"""Split the documents of very large files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dsearch.types import Document

LARGEST = 1 << 20  # bytes of a text that stays whole: what a collection stores in one document
PART = 1 << 18

_SEAMS = ("\n\n", "\n", " ")


def parts_of(document: Document) -> Iterator[tuple[int, Document]]:
    """Yield 0 and a document, or its parts from 1 if its text has more than 1 MiB, each of at most 256 KiB.

    A part ends at a blank line, else at a line's end, else between words. Parts depend only on the text
    before them, so adding to a file leaves the earlier ones. The first keeps the document's id; part n has
    the id `ID#n`.
    """
    if len(document.text) <= LARGEST // 4 or len(document.text.encode("utf-8", "replace")) <= LARGEST:
        yield 0, document
        return
    for number, text in enumerate(_cut(document.text), start=1):
        if number == 1:
            yield 1, replace(document, text=text)
        else:
            yield (
                number,
                replace(
                    document, id=f"{document.id}#{number}", title=f"{document.title} ({number})", text=text
                ),
            )


def _cut(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = at + _fitting(text, at)
        if end < len(text):
            end = next((seam_at for seam in _SEAMS if (seam_at := text.rfind(seam, at + 1, end)) > at), end)
        if part := text[at:end].strip():
            yield part
        at = end


def _fitting(text: str, at: int) -> int:
    """Number of characters from `at` on that fit into a part."""
    raw = text[at : at + PART].encode("utf-8", "surrogatepass")[:PART]
    return max(1, len(raw.decode("utf-8", "ignore")))
