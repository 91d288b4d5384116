"""What one would write oneself: FastAPI, sentence-transformers and FAISS, for scripts/bench/service.py.

    uvicorn baseline_service:app       BASELINE_ENCODER=the folder or name of a model

No durability, no deletions, no keyword search, no limits: the shortest honest search service.
"""

import os
import threading

import faiss
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(os.environ.get("BASELINE_ENCODER", "all-MiniLM-L6-v2"), device="cpu")
index = faiss.IndexFlatIP(model.encode(["x"]).shape[1])
texts: list[str] = []
writing = threading.Lock()
app = FastAPI()


class Documents(BaseModel):
    texts: list[str]


class Search(BaseModel):
    query: str
    limit: int = 10


@app.post("/documents")
def add(documents: Documents) -> dict[str, int]:
    embeddings = model.encode(documents.texts, normalize_embeddings=True)
    with writing:
        index.add(embeddings)
        texts.extend(documents.texts)
    return {"documents": len(texts)}


@app.post("/search")
def search(asked: Search) -> dict[str, list[dict[str, object]]]:
    scores, rows = index.search(model.encode([asked.query], normalize_embeddings=True), asked.limit)
    found = zip(rows[0].tolist(), scores[0].tolist(), strict=True)
    return {"hits": [{"id": row, "score": score, "text": texts[row]} for row, score in found if row >= 0]}
