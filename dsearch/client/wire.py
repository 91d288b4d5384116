"""Requests and replies of HTTP without a socket, and what they hold: JSON, vectors, tensors.

A flow yields requests and is sent the replies, so one serves a client that blocks and one that awaits (the
"sans-I/O" way). Requests: paths, questions as JSON, documents in batches. Answers: from bytes to the result
of a call, with the answers to several parts joined into one.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar
from urllib.parse import quote

from dsearch.errors import Command, DsearchError, InvalidDocument, InvalidRequest, Unavailable, amount
from dsearch.results import Attention, FieldPrediction, Gradients, RefusedDocument, WriteResult
from dsearch.types import Document, SearchResult, Stamp

JSON = "application/json"
NDJSON = "application/x-ndjson"
TENSORS = "application/x-safetensors"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """HTTP request to send.

    Attributes:
        method: HTTP method.
        path: path below the server's address, quoted.
        query: query of the URL.
        content: request body; a file is sent part by part.
        content_type: media type of the body.
        accept: accepted media type.
        repeatable: whether repeating it has no further effect.
        writes: whether it changes something; writes have a longer timeout.
    """

    method: str
    path: str
    query: Mapping[str, str | int] = field(default_factory=dict)
    content: bytes | BinaryIO | None = None
    content_type: str = JSON
    accept: str = JSON
    repeatable: bool = True
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before going on; the answer is empty."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Complete HTTP response; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


NOTHING = HttpReply(0, {}, b"")
Flow: TypeAlias = Generator[Request | Pause, HttpReply, T]
"""Yields requests, is sent their answers (those of 400 and more are raised into it), returns a result."""


if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    Vectors: TypeAlias = Float[np.ndarray, "batch dim"] | Sequence[Sequence[float]]
    Rows: TypeAlias = Float[np.ndarray, "batch candidates"] | Sequence[Sequence[float]]
    from pydantic import TypeAdapter


QUERIES_AT_ONCE = 64
_TOO_LARGE = ("answer_too_large", "body_too_large")  # codes of errors that fewer queries avoid
_OF_ALL = ("mixture",)  # arrays that have no row a query
_NO_CANDIDATES = ("context", "output", "covered_mass", "mixtures")
_BY_HEAD = ("dense", "keyword", "head_weights", "slopes")


def numbers(vectors: Any) -> np.ndarray:
    """Vectors as float64: JSON's numbers then are theirs to the last bit, whatever they are computed in.

    Raises:
        InvalidRequest: not two dimensions of finite numbers.
    """
    import numpy as np

    try:
        array = np.ascontiguousarray(vectors, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 2:
        raise InvalidRequest("vectors that are no matrix; give [n, dimension] numbers")
    if not np.isfinite(array).all():
        raise InvalidRequest("vectors with numbers that are not finite; give finite ones")
    return array


def one_vector(vector: Any) -> Any:
    """A vector as float64; None without one.

    Raises:
        InvalidRequest: not finite numbers in one dimension.
    """
    return None if vector is None else numbers([vector])[0]


def ragged(rows: Any) -> list[Any]:
    """Rows of numbers, each of its own length."""
    import numpy as np

    return [np.ascontiguousarray(row, np.float64) for row in rows]


class RequestParts:
    """Queries, their vectors, or both, in parts that fit one request each.

    Args:
        queries: texts; None for vectors alone.
        vectors: states; None for texts alone.

    Raises:
        InvalidRequest: texts and vectors of different number.
    """

    def __init__(self, queries: Sequence[str] | None, vectors: Any):
        self._queries, self._states = queries, None if vectors is None else numbers(vectors)
        if queries is not None and self._states is not None and len(queries) != len(self._states):
            raise InvalidRequest(
                f"{amount(len(queries), 'query')} and {amount(len(self._states), 'vector')}; give as many, "
                "or either alone"
            )
        rows = self._states if queries is None else queries
        self._count = 0 if rows is None else len(rows)
        self._start, self._size, self._most = 0, 0, QUERIES_AT_ONCE

    @property
    def place(self) -> slice:
        """Queries of the present part."""
        return slice(self._start, self._start + self._size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield part after part; after `halve` the same queries again, in smaller parts."""
        while self._start < max(self._count, 1):
            self._size = self._most
            queries, states = self._queries, self._states
            yield {
                "queries": None if queries is None else list(queries[self.place]),
                "vectors": None if states is None else states[self.place],
            }
            self._start += self._size

    def halve(self, error: InvalidRequest) -> None:
        """Ask for half as many queries from now on, this part included.

        Raises:
            InvalidRequest: the error itself, if size is not its reason or one query alone is too large.
        """
        size = min(self._size, self._count - self._start)
        if error.code not in _TOO_LARGE or size <= 1:
            raise error
        self._most, self._size = size // 2, 0


def joined(answers: Sequence[Attention]) -> Attention:
    """Answers to several parts as one, all as wide as the widest."""
    import numpy as np

    if len(answers) == 1:
        return answers[0]
    widest = max(answer.weights.shape[1] for answer in answers)
    arrays: dict[str, Any] = {}
    for name in (part.name for part in fields(Attention)):
        parts = [getattr(answer, name) for answer in answers]
        if name in _OF_ALL or not isinstance(parts[0], np.ndarray):
            continue
        if name in ("keys", "values"):
            parts = _alike(parts, len(answers[0].mixture))
        by_head = name in _BY_HEAD or parts[0].ndim == 4
        axis = None if name in _NO_CANDIDATES else 2 if by_head else 1
        padding = -1 if name == "positions" else 0
        arrays[name] = np.concatenate([_widened(part, axis, widest, padding) for part in parts])
    ids = [line for answer in answers for line in answer.ids]
    candidates = [count for answer in answers for count in answer.candidates or []]
    notes = dict.fromkeys(answer.note for answer in answers if answer.note is not None)
    if answers[0].texts is not None:
        arrays["texts"] = [line for answer in answers for line in answer.texts or []]
    return replace(answers[0], ids=ids, candidates=candidates, note="; ".join(notes) or None, **arrays)


def joined_gradients(answers: Sequence[Gradients]) -> Gradients:
    """Gradients of several parts as one: of states one below the other, all others added."""
    import numpy as np

    head = {name: sum(answer.head[name] for answer in answers) for name in answers[0].head}
    states = np.concatenate([answer.states for answer in answers])
    of_inputs: dict[str, Any] = {}
    for name in ("bias", "table"):
        parts = [getattr(answer, name) for answer in answers]
        of_inputs[name] = None if parts[0] is None else np.sum(parts, axis=0)
    return Gradients(answers[0].stamp, states, head, **of_inputs)  # type: ignore[arg-type]


def head_file(tensors: Mapping[str, Any], record: Mapping[str, Any] | None) -> bytes:
    """A head as the server takes it: safetensors, with its record as JSON in their metadata."""
    import numpy as np
    from safetensors.numpy import save

    arrays = {name: np.array(tensor, np.float32, order="C") for name, tensor in tensors.items()}
    return save(arrays, None if record is None else {"record": json.dumps(record)})


def _alike(parts: list[np.ndarray], heads: int) -> list[np.ndarray]:
    """Vectors of candidates, by head in all parts if in any: where no document is long, heads share them."""
    import numpy as np

    if all(part.ndim == 3 for part in parts):
        return parts
    return [np.repeat(part[:, None], heads, 1) if part.ndim == 3 else part for part in parts]


def _widened(array: np.ndarray, axis: int | None, width: int, value: int) -> np.ndarray:
    import numpy as np

    if axis is None or array.shape[axis] == width:
        return array
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, width - array.shape[axis])
    return np.pad(array, padding, constant_values=value)


BATCH_DOCUMENTS = 1000
BATCH_BYTES = 1024 * 1024  # of text a server encodes it in half a minute or so: progress is seen
SHOWN_PROBLEMS = 100


def quoted(part: str) -> str:
    """A part of a path. One of dots alone would be taken for a step up, so dots are quoted, too.

    Raises:
        InvalidRequest: no text.
    """
    if not isinstance(part, str):
        raise InvalidRequest(f"{part!r:.80} names one thing of a path; give its name or id as text")
    return quote(part, safe="").replace(".", "%2E")


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them: a stamp as an object, tensors as nested lists."""
    own, stamp, head = dict(options), options.get("stamp"), options.get("with_head")
    if stamp is not None:
        own["stamp"] = asdict(stamp)
    if head is not None:
        own["with_head"] = {
            name: tensor.tolist() if hasattr(tensor, "tolist") else tensor for name, tensor in head.items()
        }
    return own


def json_of(content: Any, error: type[InvalidRequest] = InvalidRequest) -> bytes:
    """JSON; NumPy's arrays are lists in it. `error` is raised for what JSON does not have.

    Raises:
        InvalidRequest: there is something that JSON does not have, such as a number that is not finite.
    """
    import orjson

    try:
        written = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as why:
        raise error(f"not JSON ({why}); give text, finite numbers, lists and objects") from None
    # orjson writes null for NaN and infinity: without a null there was neither, and nothing to look for.
    if b"null" in written and (place := _place_not_finite(content)) is not None:
        raise error(f"{place}; JSON has finite numbers only, use null")
    return written


def _place_not_finite(content: Any, place: str = "") -> str | None:
    """First number that is not finite, by place, such as `metadata.size=nan`; None without any."""
    if isinstance(content, float):
        return None if math.isfinite(content) else f"{place or 'value'}={content}"
    if isinstance(content, str | bytes | int | None):
        return None
    if isinstance(content, Mapping):
        parts = ((f"{place}.{name}" if place else str(name), part) for name, part in content.items())
    else:  # a list, an array, or a number of NumPy
        content = content.tolist() if hasattr(content, "tolist") else content
        if not isinstance(content, list | tuple):
            return None if not isinstance(content, float) else _place_not_finite(content, place)
        parts = ((f"{place}[{at}]", part) for at, part in enumerate(content))
    return next((found for name, part in parts if (found := _place_not_finite(part, name))), None)


def batches(
    documents: Iterable[Document | Mapping[str, Any]], refuse: Callable[[RefusedDocument], None]
) -> Iterator[tuple[Sequence[int], bytes]]:
    """NDJSON bodies with the numbers of their documents from 1; one at least, unless all are refused.

    Args:
        documents: what to write.
        refuse: called with each document that JSON cannot hold, which is left out.
    """
    lines: list[bytes] = []
    numbers: list[int] = []
    size = number = 0
    for number, document in enumerate(documents, start=1):
        content = _object(document)
        try:
            lines.append(json_of(content, InvalidDocument))
        except InvalidDocument as error:
            id = content.get("id") if isinstance(content, Mapping) else None
            detail = f"the document (id {str(id)[:80]!r}) is left out: {error}"
            refuse(RefusedDocument(number, error.code, detail))
            continue
        numbers.append(number)
        size += len(lines[-1])
        if len(lines) >= BATCH_DOCUMENTS or size >= BATCH_BYTES:
            yield numbers, b"\n".join(lines)
            lines, numbers, size = [], [], 0
    if lines or not number:
        yield numbers, b"\n".join(lines)


def tensor_batches(
    documents: Iterable[Document | Mapping[str, Any]], embeddings: Any
) -> Iterator[tuple[Sequence[int], bytes]]:
    """Safetensors bodies of documents and their rows, with the documents' numbers from 1; one at least.

    Raises:
        InvalidRequest: not one row a document, or numbers that are not finite.
    """
    import numpy as np
    from safetensors.numpy import save

    written = [_object(document) for document in documents]
    rows = numbers(embeddings)
    if len(rows) != len(written):
        raise InvalidRequest(
            f"{amount(len(rows), 'embedding')} for {amount(len(written), 'document')}; give one each"
        )
    for start in range(0, max(len(rows), 1), BATCH_DOCUMENTS):
        part = slice(start, start + BATCH_DOCUMENTS)
        with np.errstate(over="ignore"):  # refused by the server, as too long
            tensor = np.ascontiguousarray(rows[part], np.float32)
        yield (
            range(start + 1, start + 1 + BATCH_DOCUMENTS),
            save({"embeddings": tensor}, {"documents": json_of(written[part], InvalidDocument).decode()}),
        )


def _object(document: Document | Mapping[str, Any]) -> Mapping[str, Any]:
    """A document as JSON; one without an embedding names none."""
    if not isinstance(document, Document):
        return document
    content = asdict(document)
    return {name: value for name, value in content.items() if name != "embedding" or value is not None}


def renumbered(result: WriteResult, numbers: Sequence[int]) -> WriteResult:
    """The result of a batch whose documents have these numbers."""
    problems = [replace(problem, line=numbers[problem.line - 1]) for problem in result.problems]
    return replace(result, problems=problems)


def added(total: WriteResult, more: WriteResult) -> WriteResult:
    """The sum of two."""
    problems = sorted([*total.problems, *more.problems], key=lambda problem: problem.line)
    return WriteResult(
        more.sequence,
        total.inserted + more.inserted,
        total.updated + more.updated,
        total.unchanged + more.unchanged,
        total.refused + more.refused,
        problems[:SHOWN_PROBLEMS],
    )


_FACTS = "answer"
_WRITTEN = "written"


def content_of(answer: HttpReply) -> Any:
    """The JSON of an answer.

    Raises:
        Unavailable: it is not JSON: something else than dsearch has answered.
    """
    import orjson

    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        raise Unavailable(
            f"status {answer.status} and a body that is not JSON; is something else at this address?"
        ) from None


def parse(kind: type[T], content: Any) -> T:
    """`kind`, a dataclass, of JSON; names that it does not have come from a newer server, and are left."""
    return _adapter(kind).validate_python(content)


def search_result(query: str, content: Mapping[str, Any]) -> SearchResult:
    """The answer to one query."""
    return parse(SearchResult, {**content, "query": query, "stamp": content})


def prediction(content: Mapping[str, Any]) -> FieldPrediction:
    """A prediction; JSON has labels in a list, for true is not "true"."""
    prediction = parse(FieldPrediction, {**content, "labels": None})
    labels = content["labels"]
    return replace(prediction, labels=labels and {label["label"]: label["share"] for label in labels})


def tensors_of(content: bytes) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the JSON part of an answer in safetensors (None if it has none), and its tensors.

    Raises:
        Unavailable: the answer is not safetensors.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return json.loads(header.get("__metadata__", {}).get(_FACTS, "null")), tensors
    except (SafetensorError, ValueError) as error:
        raise Unavailable(f"an answer that is not safetensors ({error}); ask again") from None


def attention(content: bytes) -> Attention:
    """The answer to `attend`."""
    facts, tensors = tensors_of(content)
    return Attention(
        ids=facts["ids"],
        stamp=parse(Stamp, facts),
        hops=facts["hops"],
        temperature=facts["temperature"],
        candidates=facts.get("candidates"),
        note=facts.get("note"),
        draft=facts.get("draft"),
        texts=facts.get("texts"),
        **tensors,
    )


def error_of(answer: HttpReply) -> DsearchError:
    """The error that a problem document describes: of the class that has its `code`, in this process too.

    One whose class belongs to the service alone becomes the nearest that this package has, with its code.
    """
    problem: dict[str, Any] = {}
    hint: Command | None = None
    try:
        problem = json.loads(answer.content)
        code, (detail, hint) = str(problem["code"]), text_and_hint(problem)
    except (ValueError, KeyError, TypeError):
        code, detail = "unavailable", f"status {answer.status}, and no problem document to say why"
    kind = _kinds().get(code)
    if kind is None:
        nearest = {401: "key_missing", 403: "access_denied", 404: "not_found", 409: "conflict", 410: "gone"}
        nearest |= {429: "unavailable", 503: "unavailable"}
        fallback = "invalid_request" if 400 <= answer.status < 500 else "error"
        kind = _kinds()[nearest.get(answer.status, fallback)]
    error = kind(detail, hint=hint)
    error.code, error.status = code, answer.status
    if isinstance(problem, dict) and problem.get("written") is not None:
        error.__dict__[_WRITTEN] = problem["written"]
    return error


def text_and_hint(problem: Mapping[str, Any]) -> tuple[str, Command | None]:
    """Message and hint of the error that a problem document, or the problem of a task, describes."""
    detail, hint = str(problem["detail"]), problem.get("hint")
    if hint is None:
        return detail, None
    command = Command(str(hint["name"]), tuple(map(str, hint["arguments"])))
    return detail.removesuffix(f" with: {command}"), command


def written_before(error: DsearchError) -> Mapping[str, Any] | None:
    """Return the result up to the error of a stream: the stored lines, or the report on lines all refused."""
    return error.__dict__.get(_WRITTEN)


@functools.cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@functools.cache
def _kinds() -> dict[str, type[DsearchError]]:
    kinds: dict[str, type[DsearchError]] = {}
    waiting: list[type[DsearchError]] = [DsearchError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__ == DsearchError.__module__:
            kinds.setdefault(kind.code, kind)
            waiting += kind.__subclasses__()
    return kinds
