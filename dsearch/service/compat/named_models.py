"""Names of models in requests of other APIs: "papers", "papers@v3", and with a side "papers@v3:query"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from dsearch.encoder.text_encoder import Role
from dsearch.errors import InvalidRequest
from dsearch.service.wire.requests import allowed, repr_of

_NAMED = re.compile(r"([^@:\s]+)(?:@(v[0-9]{1,9}))?(?::(query|document))?")
_USE = "use COLLECTION, COLLECTION@VERSION or COLLECTION@VERSION:query, such as papers@v3 (GET /v1/models)"

ModelName = Annotated[str, Field(min_length=1, max_length=128), allowed("a string; see GET /v1/models")]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model by its name.

    Attributes:
        collection: name or alias of a collection.
        version: version of its model; None: the live one.
        side: side of the model; None: the name does not say.
    """

    collection: str
    version: str | None = None
    side: Role | None = None

    @classmethod
    def of(cls, name: str) -> NamedModel:
        """Parse a name.

        Raises:
            InvalidRequest: not the name of a model.
        """
        matched = _NAMED.fullmatch(name)
        if matched is None:
            raise InvalidRequest(f"model={repr_of(name)}; {_USE}")
        side: Role | None = "query" if matched[3] == "query" else "document" if matched[3] else None
        return cls(matched[1], matched[2], side)

    def __str__(self) -> str:
        version = f"@{self.version}" if self.version else ""
        return f"{self.collection}{version}" + (f":{self.side}" if self.side else "")
