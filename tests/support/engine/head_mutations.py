"""Bodies that were a head once: flipped, cut, joined wrongly, with other headers, numbers and records."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from safetensors.torch import load, save

from dsearch.attention.retrieval.head import Head
from dsearch.engine.models.tensors import head_bytes

RECORDS = (
    *("[]", "1", "null", "{}", '{"a":NaN}', '{"a":1e999}', '{"a":"\\u0000"}'),
    *('"\\ud800"', '{"\\ud800":"\\udfff"}', '{"a":' + "9" * 5000 + "}", "[" * 5000),
    *('{"a":' * 900 + "1" + "}" * 900, '{"a":' * 3000 + "1" + "}" * 3000),
    *('{"files":{"x":1}}', '{"memory":1}', '{"query_encoder":3}', '{"documents":[]}'),
)
VALUES: dict[str, tuple[Any, ...]] = {
    "dtype": ("F64", "BF16", "F8_E4M3", "I64", "BOOL", "F4", "C64", "U16", "x"),
    "shape": ([], [0], [2, 2], [-1], [2**40], [1, 1, 1, 1], [2**63, 2**63], [0, 2**62], [0, 0, 0]),
    "data_offsets": ([0, 0], [1, 0], [0, 4], [8, 16], [0, 2**63], [-1, 1]),
}
PARENTS = (
    *(None, "v0", "", "v1", "v00", "v-1", "v99999999999", "v٣", "0", "v0\0", "../v0", "v0" * 200, "{}"),
)
NAMES = ("x", "", "\0", "query_delta", "query_out", "bm25")
NUMBERS = (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\xff", b"\1\0\0\0")  # NaN, inf, largest, tiny


def heads(dimension: int) -> list[bytes]:
    """Bodies that are heads, of each kind."""
    weighted = Head(dimension)
    weighted.weigh_keywords(1.2, 0.75)
    made = (
        Head(dimension),
        Head(dimension, heads=2, rank=2),
        Head(dimension, heads=2, rank=2, query_side="mlp"),
        weighted,
    )
    plain = [head_bytes(head) for head in made]
    return plain + [save(load(body), metadata={"record": '{"a": {"b": [1]}}'}) for body in plain]


def mutations(dimension: int, count: int, *, seed: int = 0) -> Iterator[bytes]:
    """Yield `count` bodies; one in five or so is still a head."""
    generator, bodies = random.Random(seed), heads(dimension)
    for _ in range(count):
        yield _mutated(generator, bytearray(generator.choice(bodies)))


def _mutated(generator: random.Random, body: bytearray) -> bytes:
    length = int.from_bytes(body[:8], "little")
    kind = generator.choice(("flip", "flip header", "cut", "header", "number", "longer", "length", "hole"))
    if kind in ("flip", "flip header"):
        start, end = (0, len(body)) if kind == "flip" else (8, 8 + length)
        body[generator.randrange(start, end)] ^= 1 << generator.randrange(8)
    elif kind == "cut":
        del body[generator.randrange(len(body)) :]
    elif kind == "header":
        header = _header(generator, json.loads(body[8 : 8 + length]))
        body[: 8 + length] = len(header).to_bytes(8, "little") + header
    elif kind == "number":
        at = generator.randrange(8 + length, len(body) - 3)
        body[at : at + 4] = generator.choice(
            (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\xff", b"\1\0\0\0")
        )
    elif kind == "longer":
        body += bytes(generator.randrange(1, 64))
    elif kind == "length":
        lengths = (0, 1, 2, 2**32, 2**63, 2**64 - 1, length - 1, length + 1)
        body[:8] = generator.choice(lengths).to_bytes(8, "little")
    else:
        start, end = sorted(generator.randrange(len(body)) for _ in range(2))
        del body[start:end]
    return bytes(body)


def _header(generator: random.Random, header: dict[str, Any]) -> bytes:
    name = generator.choice(sorted(set(header) - {"__metadata__"}))
    change = generator.choice((*VALUES, "name", "record"))
    if change == "record":
        header["__metadata__"] = {"record": generator.choice(RECORDS)}
    elif change == "name":
        header[generator.choice(NAMES)] = header.pop(name)
    else:
        header[name][change] = generator.choice(VALUES[change])
    return json.dumps(header).encode()
