"""E-mail: a message a file (.eml), or many in one file (.mbox)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import getaddresses, parseaddr, parsedate_to_datetime
from typing import Any

from dsearch.corpus.formats.lines import ByteStream, Problems, raw_lines
from dsearch.corpus.formats.pages import plain_html
from dsearch.corpus.formats.texts import stem
from dsearch.corpus.records import BadRecord, Place, RecordFields, content_id
from dsearch.types import Document

_MESSAGE_ID = re.compile(rb"^message-id:\s*<([!-~]+)>", re.IGNORECASE | re.MULTILINE)
_QUOTED = re.compile(rb">+From ")  # so that the line does not begin a message


def read_eml(stream: ByteStream, identity: str) -> Document:
    """Read a message: its subject is the title, its plain text (else its HTML) the text.

    Metadata: `from`, `to` (addresses), `date` (ISO 8601), `message_id`, `attachments` (file names).

    Raises:
        BadRecord: neither subject nor text.
        MissingExtra: it has HTML only, and lxml is not installed.
    """
    return _document(stream.read(), identity, stem(identity))


def read_mbox(stream: ByteStream, name: str, problems: Problems, fields: RecordFields) -> Iterator[Place]:
    """Yield the messages of an mbox file, as `read_eml`; the id is the message's own, else its content's."""
    for line, raw in _messages(stream, name, problems):
        try:
            message = _document(raw, "", "")
        except BadRecord as error:
            problems.add(name, line, str(error), skipped=[id.decode() for id in _MESSAGE_ID.findall(raw)])
            continue
        identity = message.metadata.get("message_id") or content_id(message.title, message.text)
        yield line, Document(identity, message.text, message.title, message.metadata)


def _messages(stream: ByteStream, name: str, problems: Problems) -> Iterator[tuple[int, bytes]]:
    """Yield the first line and the bytes of each message; one begins with `From ` behind a blank line."""
    begin, lines, blank = 1, list[bytes](), True
    for number, line in raw_lines(stream, name, problems):
        if blank and line.startswith(b"From "):
            if lines:
                yield begin, b"".join(lines)
            begin, lines = number, []
        else:
            lines.append(line[1:] if _QUOTED.match(line) else line)
        blank = not line.strip()
    if lines:
        yield begin, b"".join(lines)


def _document(raw: bytes, identity: str, title: str) -> Document:
    try:
        message = message_from_bytes(raw, policy=policy.default)
        assert isinstance(message, EmailMessage)  # by the policy
        text, subject = _text(message).strip(), _header(message, "subject")
        metadata = _metadata(message)
    except (LookupError, ValueError, AttributeError, TypeError, RecursionError) as error:  # broken headers
        raise BadRecord(f"not an e-mail that can be read: {type(error).__name__}: {error}") from error
    if not text and not subject:
        raise BadRecord("an e-mail with neither subject nor text")
    return Document(id=identity, title=subject or title, text=text, metadata=metadata)


def _text(message: EmailMessage) -> str:
    body = message.get_body(("plain", "html"))
    if body is None:
        return ""
    content: Any = body.get_content()
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    text = text.encode("utf-8", "replace").decode()  # lone surrogates of broken encodings
    if body.get_content_subtype() != "html":
        return text
    return plain_html(text) if text.strip() else ""


def _metadata(message: EmailMessage) -> dict[str, Any]:
    attachments = [name for part in message.iter_attachments() if (name := part.get_filename())]
    addresses = [address for text in message.get_all("to", []) for address in _addresses(str(text))]
    fields = {
        "from": parseaddr(_header(message, "from"))[1],
        "to": addresses,
        "date": _date(message),
        "message_id": _header(message, "message-id").strip("<>"),
        "attachments": attachments,
    }
    return {name: value for name, value in fields.items() if value}


def _header(message: EmailMessage, name: str) -> str:
    text = " ".join(str(message.get(name, "")).split())
    return text.encode("utf-8", "replace").decode()


def _addresses(text: str) -> list[str]:
    return [address for _, address in getaddresses([text]) if address]


def _date(message: EmailMessage) -> str:
    try:
        return parsedate_to_datetime(_header(message, "date")).isoformat()
    except (ValueError, TypeError, OverflowError):
        return ""
