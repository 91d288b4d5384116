"""The JSON of requests: the safe part of RFC 8259 (I-JSON, RFC 7493), by the rules that files are read by."""

from __future__ import annotations

from typing import Any

import orjson

from dsearch.corpus import strict_json
from dsearch.service.errors import InvalidJson

MAX_DEPTH = strict_json.MAX_DEPTH


def parse(body: bytes) -> Any:
    """The value that `body` describes.

    Raises:
        InvalidJson: says what is wrong and where.
    """
    try:
        return strict_json.parse(body.decode())
    except UnicodeDecodeError as error:
        raise InvalidJson(
            f"not JSON: byte {error.start + 1} is not UTF-8; send UTF-8 JSON (RFC 8259)"
        ) from None
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidJson(f"not JSON: {error.msg} at {where}; send UTF-8 JSON (RFC 8259)") from None
    except strict_json.AmbiguousJson as error:
        raise InvalidJson(str(error)) from None
