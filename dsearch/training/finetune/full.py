"""`finetune_full`: train both encoders without a part of the queries, and evaluate them on that part.

A training of the encoders takes minutes to hours, so it runs once: a part of the queries is held out, the
model is trained on the rest, every document is encoded by it, and the gate evaluates this very model, exactly
as it would be served. (A head takes seconds: `finetune` trains one per fold, and one on all queries.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import LearningEncoder, TextEncoder
from dsearch.engine import Collection, EncodedDocuments, Snapshot
from dsearch.engine.indexing.chunking import PassageLengths, encode
from dsearch.engine.indexing.tokens import encode_rounded
from dsearch.engine.models.training_record import query_statistics
from dsearch.engine.options import stop_words_of
from dsearch.errors import InvalidRequest, amount
from dsearch.index.tokens import DocumentTokens, TokenTable
from dsearch.store import Passages
from dsearch.training.data.examples import STRENGTHS, Examples, with_query_keys
from dsearch.training.finetune.head import TrainingResult
from dsearch.training.finetune.second_stage import train_stage_of_full
from dsearch.training.full_task import FullOptions, MovingIndex, train_full
from dsearch.training.gate.gate import Gate, judge
from dsearch.training.gate.held_out import Answers, HeldOut, headroom, split_folds, without_fold
from dsearch.training.gate.selection import (
    KEYWORD_FACTORS,
    CrossFitted,
    FoldAnswers,
    ServingChoice,
    cross_fitted,
    reweighed,
)
from dsearch.training.loop.distributed import Processes
from dsearch.training.loop.loop import Epoch, Observer, Student, Watch
from dsearch.training.loop.run_folder import ReadingStage, RunFolder, keeping_last_good
from dsearch.training.losses.passages import FurtherPassages
from dsearch.types import Progress

_ENCODED_AT_A_TIME = 256


def finetune_full(
    collection: Collection,
    examples: Examples,
    options: FullOptions | None = None,
    *,
    gate: Gate | None = None,
    start: Head | None = None,
    processes: Processes | None = None,
    observer: Observer | None = None,
    run: RunFolder | None = None,
    second_stage: bool = True,
) -> TrainingResult:
    """Train a copy of the collection's encoder, of queries and documents; nothing is published.

    Args:
        collection: collection with the encoder and the documents.
        examples: queries and their documents.
        options: options of the training.
        gate: requirements on the model.
        start: an untrained head with a tuned keyword weight and hop strength, to start from and to be
            compared with; the untrained one when None.
        processes: those that train together.
        observer: receives headroom, epochs (of the stage "train") and progress ("train", then "encode");
            stops it. Of several processes only the first one's receives anything.
        run: folder of checkpoints and metrics; an interrupted run resumes from it.
        second_stage: True to fit a second stage behind a model that passes, if the collection has tokens.

    Raises:
        TrainingDiverged, Cancelled: as for `finetune`.
        InvalidRequest: an encoder that cannot be trained.

    Long documents learn by their first passage, which is what fits the encoder; all passages are encoded at
    the end, judged by, and served.
    """
    options, processes = options or FullOptions(), processes or Processes()
    observer = observer or Observer()
    reports = observer if processes.first else Observer()
    started = time.monotonic()
    start = Head(examples.states.shape[1]).eval() if start is None else start
    examples = examples.weighed(start)
    room = headroom(examples, start, keywords=options.keywords)
    reports.headroom(room)
    part: list[int] = []
    if options.held_out:
        part = split_folds(examples, options.held_out, options.seed)[0]
    training, ranked = without_fold(examples, part, options.seed)
    if not len(training):
        raise InvalidRequest(
            f"{amount(len(examples), 'example')}, of which {len(part)} are held out; give more"
        )
    held_out = HeldOut(examples.subset(ranked), training, keywords=options.keywords) if part else None
    before = None if held_out is None else held_out.answers(start)
    stage = None if run is None else run.stage("train")
    keeper = None if stage is None else stage if processes.first else ReadingStage(stage)
    if stage is not None and processes.first:
        stage.forget_unfinished_metrics()

    def report(epoch: Epoch, student: Student, index: MovingIndex, staleness: float) -> bool:
        if held_out is not None and before is not None:
            states = student.states(held_out.examples)
            answers = held_out.answers(student.head, states, index.embeddings)
            epoch = replace(epoch, before=before.means(), after=answers.means())
        if stage is not None and processes.first:
            stage.add_metrics(epoch, student, staleness=staleness)
        reports.epoch("train", epoch)
        return True

    class Together(Observer):
        """Stop all processes at the same step if one was asked to stop."""

        def progress(self, progress: Progress) -> None:
            reports.progress(progress)

        def cancelled(self) -> bool:
            return processes.agree(observer.cancelled())

    state = examples.snapshot
    with keeping_last_good(run if processes.first else None):
        trained = train_full(
            training,
            lambda at: collection.store.contents(state.rows(at)),
            options,
            encoder=collection.encoder,
            start=start,
            watch=Watch("train", Together(), keeper),
            processes=processes,
            on_epoch=report,
        )
    student, index = trained.student, trained.index
    assert student.encoder is not None
    documents = _encoded(collection, state, student.encoder, index, reports)
    learned = student.states(training)

    def keyed(strength: float) -> EncodedDocuments:
        return with_query_keys(
            documents, collection.store, training, learned, strength=strength, seed=options.seed
        )

    crossed, served = None, ServingChoice(1.0, student.head.hop_strength.item())
    if held_out is not None and before is not None:
        crossed = _served(held_out, before, student, keyed, options)
        served = crossed.choice.served or served
        student.head = reweighed(student.head, served.keywords)
    # Both in the order of the halves: query is compared with query.
    now, after = (None, None) if crossed is None else (crossed.now, crossed.after)
    gated = judge(now, after, gate, seed=options.seed)
    documents, second = keyed(served.query_keys), None
    if gated.passed and second_stage:
        second = train_stage_of_full(
            collection,
            examples,
            ranked,
            student.encoder,
            documents,
            student.head,
            gate=gate,
            seed=options.seed,
        )
    record = {
        "scope": "full",
        "options": asdict(options),
        "epochs": options.epochs,
        "keyword_factor": served.keywords,
        "query_keys": served.query_keys,
        "examples": len(training),
        "held_out": len(part),
        "left_out": examples.left_out,
        "data_sha256": examples.digest,
        "training_queries": query_statistics(learned),
        "headroom": room.to_dict(),
        "gate": gated.to_dict(),
        "processes": processes.count,
        "seconds": round(time.monotonic() - started, 2),
    }
    if run is not None and processes.first:
        run.finish()
    if second is not None and second.passed:
        student.head = student.head.reranking(second.stage)
    return TrainingResult(
        head=student.head,
        record=record,
        gate=gated,
        encoder=student.change,
        documents=documents,
        epochs=options.epochs,
        headroom=room,
        keyword_factor=served.keywords,
        second_stage=second,
    )


def _served(
    held_out: HeldOut,
    before: Answers,
    student: Student,
    keyed: Callable[[float], EncodedDocuments],
    options: FullOptions,
) -> CrossFitted:
    """Choose the weights of keywords and query keys by the held-out queries: each half by the other.

    The encoder has learned the answers to the training queries, so training underestimates keywords for other
    documents; see selection.py. Interpolation with the start is not possible: there is only one checkpoint.

    Args:
        held_out: held-out queries.
        before: answers of the live model.
        student: trained model.
        keyed: function of a strength: the documents by it, with query keys of this strength.
        options: options of the training.
    """
    head, hop = student.head, student.head.hop_strength.item()
    factors = KEYWORD_FACTORS if options.keywords else (1.0,)
    heads, states = [reweighed(head, factor) for factor in factors], student.states(held_out.examples)
    served: dict[ServingChoice, Answers] = {}
    for strength in STRENGTHS if options.query_keys else (0.0,):
        documents = keyed(strength)
        corpus, further = torch.as_tensor(documents.embeddings), further_of(documents)
        answers = held_out.answers_of_alike(heads, [hop], states, corpus, further)
        served |= {
            ServingChoice(1.0, hop, factor, strength): of[hop]
            for factor, of in zip(factors, answers, strict=True)
        }
    whole = served[ServingChoice(1.0, hop)]
    return cross_fitted([FoldAnswers(before, whole, [whole], served)], checkpoints=1, seed=options.seed)


def _encoded(
    collection: Collection,
    state: Snapshot,
    encoder: LearningEncoder,
    index: MovingIndex,
    observer: Observer,
) -> EncodedDocuments:
    """Encode every document by the trained model, and every passage of long ones, cut as before."""
    if state.passages is None and collection.tokens.codec is None:
        index.renew(encoder, observer.progress)
        return EncodedDocuments(state, index.embeddings.numpy())
    return encoded_documents(collection, state, encoder, observer)


def encoded_documents(
    collection: Collection, state: Snapshot, encoder: TextEncoder, observer: Observer
) -> EncodedDocuments:
    """Encode every document of a state, and every passage of long ones, cut as before.

    If the collection has a second stage, the same pass gives the documents' tokens, projected as before.

    Args:
        collection: collection of the state.
        state: its documents.
        encoder: the encoder that will be served.
        observer: receives progress (stage "encode").
    """
    started, visible, store = time.monotonic(), state.visible(), collection.store
    embeddings = np.zeros((state.positions, store.dimension), np.float32)
    cutting, codec = PassageLengths.of(store), collection.tokens.codec
    tokens: list[DocumentTokens | None] = [None] * state.positions
    further: dict[int, Passages] = {}
    for start in range(0, len(visible), _ENCODED_AT_A_TIME):
        some = visible[start : start + _ENCODED_AT_A_TIME]
        documents = store.documents(state.rows(some))
        if codec is None:
            embeddings[some], passages = encode(encoder, documents, cutting)
        else:
            encoded, of_documents = encode_rounded(encoder, documents, cutting, codec, stop_words_of(store))
            embeddings[some], passages = encoded
            for at, document_tokens in zip(some.tolist(), of_documents, strict=True):
                tokens[at] = document_tokens
        further |= {int(some[place]): of_document for place, of_document in passages.items()}
        elapsed_s = time.monotonic() - started
        observer.progress(Progress("encode", start + len(some), len(visible), elapsed_s))
    table = None if codec is None else TokenTable.of(codec, tokens)
    return EncodedDocuments(state, embeddings, further, table)


def further_of(documents: EncodedDocuments) -> FurtherPassages | None:
    """The further passages as they are ranked by."""
    if not documents.further:
        return None
    places = sorted(documents.further)
    embeddings = np.concatenate([documents.further[at].embeddings for at in places])
    owners = np.repeat(places, [len(documents.further[at].embeddings) for at in places])
    return FurtherPassages(torch.as_tensor(embeddings), torch.as_tensor(owners.astype(np.int64)))
