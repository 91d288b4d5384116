"""Documents changed where they are: metadata in part, and deletions of many."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from dsearch.errors import CollectionNotFound, Conflict, DocumentNotFound, InvalidDocument, InvalidRequest
from dsearch.service.answers_find import ManyDeleted, Patched
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.problems import documented
from dsearch.service.requests_find import DeleteRequest, PatchRequest
from dsearch.service.respond import json_answer
from dsearch.service.service import TheService
from dsearch.service.strict_route import StrictRoute

router = APIRouter(
    prefix="/v1/collections/{collection}/documents", tags=["documents"], route_class=StrictRoute
)
_BODIES = documented(InvalidRequest, InvalidJson, BodyTooLarge, UnsupportedMediaType, Conflict, Overloaded)


@router.post("/delete", response_model=ManyDeleted, responses=documented(CollectionNotFound) | _BODIES)
async def delete_documents(collection: str, asked: DeleteRequest, service: TheService) -> Response:
    """Delete the documents of these ids, or those that a filter finds; gone when this answers."""
    tree = asked.tree()

    def delete() -> dict[str, Any]:
        with service.catalogue.using(collection) as opened:
            receipt = opened.delete_matching(tree) if asked.ids is None else opened.delete(asked.ids)
        return {"sequence": receipt.sequence, "deleted": receipt.deleted, "missing": receipt.missing}

    return json_answer(await service.writing.run(delete))


@router.patch(
    "/{id:path}",
    response_model=Patched,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidDocument) | _BODIES,
)
async def change_metadata(collection: str, id: str, asked: PatchRequest, service: TheService) -> Response:
    """Change part of a document's metadata (JSON Merge Patch, RFC 7396); its text and embedding stay."""

    def change() -> dict[str, Any]:
        with service.catalogue.using(collection) as opened:
            receipt = opened.update_metadata(id, asked.metadata)
            return {
                "sequence": receipt.sequence,
                "id": id,
                "metadata": opened.store.get(id).metadata,
            }

    return json_answer(await service.writing.run(change))
