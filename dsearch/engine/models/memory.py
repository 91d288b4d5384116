"""A query memory as a file of a model's folder, or of a training's on its way to the serving process.

Safetensors: past queries (`keys`) and judged documents (`codes`) in 8 bits with a scale for each row, the
documents' rows in the store, grades with the numbers of their query and document, senders of the queries
(`contributors`), `setting` (γ, τ, c, and λ where it is not 1); the texts of the queries as JSON in the
metadata, if they may be kept. Format 9 of a model has embeddings in half precision.

`index_keys` makes an index over the keys: all of them in 8 bits, or lists of 4-bit codes of very many. A
memory of fewer than `INDEXED_FROM` rows compares all of them in full length. An index is built when a version
is loaded, in some .02 s for 10,000 rows and a second for 20,000, and never changed: rows that are inserted
later are compared beside it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from jaxtyping import Float32, Int8, Int64
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dsearch.attention.arrays import numbers_of
from dsearch.attention.memory_rows import FixedMemory, MemoryRows, NearestKeys, all_trusted, by_query
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.engine.models.tensors import metadata_of
from dsearch.errors import CorruptData, InvalidRequest, amount
from dsearch.index import DenseIndex
from dsearch.index.dense.index import ScannedKeys

if TYPE_CHECKING:
    from dsearch.attention.retrieval.memory import QueryMemory


MEMORY_NAME = "memory.safetensors"
_HALVES = ("states", "embeddings")
_SENDERS = "contributors"  # name of `senders` in the file


def memory_bytes(memory: MemoryRows) -> bytes:
    """A memory as the content of its file."""
    parts = {
        name: part for name, part in memory.parts().items() if name != "starts"
    }  # follows from the others
    parts[_SENDERS] = parts.pop("senders")
    narrow = {name: parts[name].astype(np.int32) for name in ("of_query", "of_document")}
    whole = memory.lending == 1.0  # earlier releases read three numbers
    setting = {"setting": np.array(memory.setting[: 3 if whole else 4])}
    arrays = {name: np.ascontiguousarray(part) for name, part in {**parts, **narrow, **setting}.items()}
    return save(arrays, None if memory.texts is None else {"texts": json.dumps(memory.texts)})


def memory_from_bytes(content: bytes) -> QueryMemory:
    """Read a memory as a module; see `fixed_memory`."""
    from dsearch.attention.retrieval.memory import QueryMemory

    return QueryMemory.sharing(fixed_memory(content))


def fixed_memory(content: bytes) -> FixedMemory:
    """Read the output of `memory_bytes`, or a memory in half precision (format 9).

    Raises:
        CorruptData: `content` is not such an output.
    """
    try:
        texts = metadata_of(content).get("texts")
        texts = None if texts is None else json.loads(texts)
        arrays = load(content)
        strength, temperature, null_level, lending = [*arrays.pop("setting").tolist(), 1.0][:4]
        if "keys" in arrays:
            return FixedMemory.of_parts(
                _checked(arrays, texts), texts, (strength, temperature, null_level, lending)
            )
        return FixedMemory(
            **{**arrays, **{name: arrays[name].astype(np.float32) for name in _HALVES}},
            texts=texts,
            strength=strength,
            temperature=temperature,
            null_level=null_level,
            lending=lending,
        )
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, InvalidRequest) as error:
        raise CorruptData(f"{MEMORY_NAME} cannot be read ({error}); train again") from error


def _checked(arrays: dict[str, np.ndarray], texts: list[str] | None) -> dict[str, np.ndarray]:
    queries, documents = len(arrays["keys"]), len(arrays["codes"])
    senders = arrays.pop(_SENDERS, all_trusted(queries))  # earlier files have none
    arrays = {**arrays, "senders": senders}
    for name, size in (("of_query", queries), ("of_document", documents)):
        at = arrays[name]
        if len(at) != len(arrays["grades"]) or (len(at) and not 0 <= at.min() <= at.max() < size):
            raise InvalidRequest(f"{name} has an index outside 0 to {size - 1}")
    sizes = {
        "key_scales": queries,
        "senders": queries,
        "scales": documents,
        "rows": documents,
        "inserted": len(arrays["grades"]),
    }
    if any(len(arrays[name]) != size for name, size in sizes.items()):
        raise InvalidRequest("its parts are of different lengths")
    if texts is not None and len(texts) != queries:
        raise InvalidRequest(f"{amount(len(texts), 'text')} for {amount(queries, 'query')}")
    of_query, of_document = (arrays[name].astype(np.int64) for name in ("of_query", "of_document"))
    grades = by_query(of_query, of_document, arrays["grades"], arrays["inserted"], queries)
    return {**arrays, **grades}


def memory_record(memory: MemoryRows) -> dict[str, Any]:
    """Sizes and setting of a memory, as JSON."""
    strength, temperature, null_level, lending = memory.setting
    return {
        "queries": len(memory),
        "documents": memory.documents,
        "strength": round(strength, 6),
        "temperature": round(temperature, 6),
        "null_level": round(null_level, 6),
        "lending": lending,
    }


Kind = TypeVar("Kind", bound=HeadFormulas)

INDEXED_FROM = 512
LENDERS_FROM = 4096  # judged documents: many are compared with at once, as matrices
LISTS_FROM = 20_000  # with 40,000 keys lists take two thirds of the time, and miss some
# Of about √n lists. On synthetic keys they hold .9993 of the attention with 100,000 rows
# (`scripts/bench/memory.py`).
PARAMETERS = {"nprobe": 96, "k_factor": 4}


class IndexedKeys:
    """The nearest of many keys; the candidates of a search are compared exactly afterwards.

    Args:
        codes: keys as whole numbers.
        scales: the unit of each.
    """

    def __init__(self, codes: Int8[np.ndarray, "keys dim"], scales: Float32[np.ndarray, " keys"]):
        self._index = DenseIndex.build(codes * scales[:, None], "IVFPQ")

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._index)

    def __deepcopy__(self, _: Any) -> IndexedKeys:
        return self  # immutable

    def nearest(
        self, queries: Float32[np.ndarray, "batch encoder_dim"], count: int
    ) -> Int64[np.ndarray, "batch near"]:
        """Numbers of the keys with the largest products, −1 behind."""
        return self._index.nearest(queries, count, PARAMETERS)


def index_keys(head: Kind) -> Kind:
    """Give the memory of a head, if it has many rows, its indexes; return the head."""
    memory = head.memory
    if memory is None:
        return head
    if len(memory) >= INDEXED_FROM:
        memory.index = _index(numbers_of(memory.keys), numbers_of(memory.key_scales))
    if memory.documents >= LENDERS_FROM:
        memory.lenders = IndexedKeys(numbers_of(memory.codes), numbers_of(memory.scales))
    return head


def _index(codes: Int8[np.ndarray, "keys dim"], scales: Float32[np.ndarray, " keys"]) -> NearestKeys:
    kind = IndexedKeys if len(codes) >= LISTS_FROM else ScannedKeys
    return kind(codes, scales)
