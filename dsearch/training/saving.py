"""`save_model`: judge a layer that was trained by any loss, and keep it as a version of the collection.

    layer = open_layer(engine, "papers")
    …                                                   # any loss, any loop
    save_model(engine.collection("papers"), layer, evidence=JudgedQueries(queries, judgements))

The gate is that of `dsearch train`: it compares with the live version. Evidence is held-out
judged queries (nDCG@10 over the whole corpus, ranked as served), or one number for each held-out example, by
both versions. Without evidence a version is stored but not live.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import score_of_module
from dsearch.encoder import (
    EncoderChange,
    EncoderIdentity,
    LearningEncoder,
    TextEncoder,
    tuned,
    tuned_identity,
)
from dsearch.engine import (
    Collection,
    CollectionLayer,
    EncodedDocuments,
    SearchLayer,
    Snapshot,
    calls,
    require_head_alone,
)
from dsearch.engine.models.documents import encoded_state
from dsearch.engine.models.files import UNTRAINED
from dsearch.engine.models.ledger import Account
from dsearch.errors import Cancelled, Conflict, CorruptData, DimensionMismatch, InvalidRequest
from dsearch.jobs import ExampleScores, JudgedQueries, SavingJob
from dsearch.training.candidate import JudgedCandidate
from dsearch.training.data.examples import Examples
from dsearch.training.finetune.full import encoded_documents, further_of
from dsearch.training.gate.gate import Gate, GateReport, judge, judge_scores, overlap_of_canaries, verdict_of
from dsearch.training.gate.held_out import HeldOut
from dsearch.training.loop.loop import Observer
from dsearch.training.registry import Registration, register, register_verdict
from dsearch.training.run import gate_of, judged_examples
from dsearch.types import Progress

Score = Callable[[Any], Sequence[float] | torch.Tensor]
"""Scores held-out examples by a layer, one number each; more is better."""


def scores_by(score: Score, layer: torch.nn.Module) -> list[float]:
    """Scores of held-out examples by a layer, without gradients.

    Raises:
        InvalidRequest: not one number for each example.
    """
    was_training = layer.training
    layer.eval()
    try:
        with torch.no_grad():
            scores = torch.as_tensor(score(layer)).detach().cpu().double().numpy()
    finally:
        layer.train(was_training)
    if scores.ndim != 1:
        raise InvalidRequest(
            f"scores of shape {list(scores.shape)}; give one number for each held-out example: the gate "
            "compares example by example"
        )
    return scores.tolist()


def scores_over(
    collection: Collection,
    layer: SearchLayer,
    encoder: EncoderIdentity,
    documents: EncodedDocuments,
    score: Score,
) -> list[float]:
    """Scores of held-out examples by a layer over encoded documents, searched as the version will be.

    The documents are built in a temporary folder, as large as their generation will be.

    Args:
        collection: of the documents.
        layer: over the collection; it stays as it is.
        encoder: that encoded them.
        documents: all, encoded.
        score: scores examples by a layer.

    Raises:
        InvalidRequest: as `scores_by`.
    """
    with TemporaryDirectory() as folder:
        state = encoded_state(Path(folder), collection.store, documents, encoder)
        if isinstance(layer, CollectionLayer):
            return scores_by(score, layer.with_documents(state))
        over = copy.copy(layer)
        over.snapshot = state
        return scores_by(score, over)


SCOPE = "layer"  # of its record
_STEPS = 4  # of a judgement

Evidence = JudgedQueries | ExampleScores | Score


def save_model(
    collection: Collection,
    layer: SearchLayer | Head,
    *,
    evidence: Evidence | None = None,
    measure: str | None = None,
    encoder: LearningEncoder | EncoderChange | None = None,
    parent: str | None = None,
    record: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> Registration:
    """Judge a trained layer by evidence, and keep it as a version, which answers if the gate lets it.

    Args:
        collection: opened for writing.
        layer: the layer, also inside of `AveragedModel`, `DataParallel` or what `torch.compile` gives; or its
            head alone.
        evidence: held-out judged queries; scores by both versions; or a function that scores held-out
            examples by a layer, called with the live version's and with this one, over its own documents with
            encode_documents. None: the version is kept
            and does not answer.
        measure: name of the function's score, for the report.
        encoder: query encoder that learned with it; that of the layer when None.
        parent: version that it was trained from; that of the layer, else the live one, when None.
        record: what should be known of it later, as JSON.
        observer: receives the progress of the judgement, in steps of four; may stop it.
        options: promote, accept, risk, alpha, margin, exclude, encode_documents: see
            `dsearch.jobs.SavingJob`.

    Raises:
        InvalidRequest: evidence that is none, scores that are no pairs, a head that is no head of this
            collection.
        Conflict: the parent has a query encoder or documents of its own, which the version would lose.
        ModelNotFound: no such parent.
        Cancelled: the observer stopped it.
    """
    layer = unwrapped(layer)
    _require_parts(collection, layer)
    if isinstance(layer, CollectionLayer):
        parent, encoder = parent or layer.version, encoder or layer.encoder
    parent = parent or collection.live_model
    change = encoder.change() if isinstance(encoder, LearningEncoder) else encoder
    documents = None
    # The gate ranks on the CPU, wherever the layer was trained; the layer itself stays where it is.
    head = copy.deepcopy(layer if isinstance(layer, Head) else head_of_layer(layer)).cpu()
    if callable(evidence):
        if isinstance(layer, Head):
            raise InvalidRequest("a function as evidence scores layers, and this is a head; give the layer")
        live = collection.live_model
        before = scores_by(evidence, _live_layer(collection, layer, live))
        if options.get("encode_documents"):
            SavingJob(**options).check()
            _require_whole(collection, parent, head, change)
            documents = _encoded(collection, change, collection.snapshot_for(UNTRAINED), observer)
            assert change is not None  # it encoded them
            identity = _encoder_with(collection.encoder, change).identity
            after = scores_over(collection, layer, identity, documents, evidence)
        else:
            after = scores_by(evidence, layer)
        evidence = ExampleScores(before, after, measure or "score", live)
    elif measure is not None:
        raise InvalidRequest("measure names the score of a function; leave it out with other evidence")
    job = SavingJob(**evidence_fields(evidence), **options)
    judged = judge_layer(
        collection,
        head,
        job,
        encoder=change,
        parent=parent,
        record=record,
        observer=observer,
        documents=documents,
    )
    return register(collection, judged, parent=parent, promote=job.promote, accept=job.accept)


def _encoded(
    collection: Collection, change: EncoderChange | None, state: Snapshot, observer: Observer | None
) -> EncodedDocuments:
    """Every document of a state, by the encoder that learned.

    Raises:
        InvalidRequest: no encoder learned, or one that does not fit the collection's.
    """
    if change is None:
        raise InvalidRequest(
            "encode_documents without an encoder that learned; open the layer with encoder_training"
        )
    served = _encoder_with(collection.encoder, change)
    return encoded_documents(collection, state, served, observer or Observer())


def _require_parts(collection: object, layer: object) -> None:
    """Refuse what is no collection and no layer.

    Raises:
        InvalidRequest: naming the call that takes it.
    """
    if not isinstance(collection, Collection):
        raise InvalidRequest(
            f"a collection of type {type(collection).__name__}; give one of an engine, such as "
            "engine.collection('papers'), or use save_model of dsearch.open or Client, which takes its name"
        )
    if not isinstance(layer, SearchLayer | Head):
        raise InvalidRequest(
            f"a layer of type {type(layer).__name__}; give one of dsearch.open_layer, or its head; a "
            "RemoteSearch is saved by save_model of its client"
        )


def unwrapped(layer: Any) -> Any:
    """The layer inside of an `AveragedModel`, of parallel data or of a compiled module; else itself."""
    for name in ("_orig_mod", "module"):
        inner = getattr(layer, name, None)
        if inner is not None:
            return unwrapped(inner)
    return layer


def require_no_bias(layer: Any) -> None:
    """Refuse a layer with a bias for each document: a version without it answers otherwise."""
    if layer.bias is not None:
        raise InvalidRequest(
            "a layer with a bias for each document, which no version has; set bias=None first"
        )


def head_of_layer(layer: SearchLayer) -> Head:
    """Return a layer's head, with the score that learned beside it.

    Raises:
        InvalidRequest: a score of one's own that no version can have, or a bias.
    """
    require_no_bias(layer)
    if not isinstance(layer.score, torch.nn.Module) or layer.score is layer.head.learned_score:
        return layer.head
    score = score_of_module(layer.score)
    if score is None:
        raise InvalidRequest(
            f"a layer with a score of type {type(layer.score).__name__}; a version can have AdditiveScore, "
            "GeneralScore, or KernelScore of gaussian or epanechnikov"
        )
    return layer.head.scoring_by(score)


def evidence_fields(evidence: JudgedQueries | ExampleScores | None) -> dict[str, Any]:
    """The fields of a `SavingJob` that hold this evidence."""
    if evidence is not None and not isinstance(evidence, JudgedQueries | ExampleScores):
        raise InvalidRequest(
            f"evidence of type {type(evidence).__name__}; use JudgedQueries, ExampleScores or a function "
            "that scores held-out examples by a layer"
        )
    return {} if evidence is None else {name: getattr(evidence, name) for name in evidence.__slots__}


def judge_layer(
    collection: Collection,
    head: Head,
    job: SavingJob,
    *,
    encoder: EncoderChange | None = None,
    parent: str,
    record: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    documents: EncodedDocuments | None = None,
) -> JudgedCandidate:
    """Judge a head, and the encoder that learned with it, against the live version; nothing is registered.

    `documents`: those of `encode_documents`, where they are encoded already.

    Raises:
        As `save_model`.
    """
    job.check()
    _require_whole(collection, parent, head, encoder)
    _require_fitting(head, collection.store.dimension)
    steps = _Steps(observer or Observer())
    served = None if encoder is None else _encoder_with(collection.encoder, encoder)
    left_out: dict[str, int] = {}
    examples = None
    live = job.live or collection.live_model
    if job.judgements is not None:
        _require_comparable(collection, head, live)
        examples = judged_examples(collection, job)
    account = _account(collection, job, None if examples is None else examples.texts)
    if job.encode_documents and documents is None:
        state = collection.snapshot_for(UNTRAINED) if examples is None else examples.snapshot
        documents = _encoded(collection, encoder, state, observer)
    if examples is not None:
        report = _by_judgements(
            collection, live, head, served, examples, job, gate_of(job, account), steps, documents
        )
        left_out = dict(examples.left_out)
    elif job.before is not None:
        report = judge_scores(job, gate_of(job, account))
    else:
        report = judge(None, None, gate_of(job, account))
    steps.reach(_STEPS)
    about = {
        "scope": SCOPE,
        "uploaded": dict(record or {}),
        "left_out": left_out,
        **verdict_of(report, None if report.p_value is None else live),
    }
    about = account.entered(about)
    return JudgedCandidate(head=head, record=about, gate=report, encoder=encoder, documents=documents)


def judge_version(collection: Collection, version: str, job: SavingJob) -> Registration:
    """Judge a version that was kept without a verdict by scores of examples; let it answer if it may.

    Args:
        collection: opened for writing.
        version: its name.
        job: `before` and `after`, the version that `before` is of, and the options of the gate.

    Raises:
        ModelNotFound.
        InvalidRequest: as `judge_scores`.
        Conflict: as `calls.require_unjudged`.
    """
    calls.require_unjudged(collection, version)
    live = job.live or collection.live_model
    verdict = judged_scores(collection, job, live)
    return register_verdict(collection, version, verdict, promote=job.promote, accept=job.accept)


def judged_scores(collection: Collection, job: SavingJob, compared_with: str | None) -> dict[str, Any]:
    """Judge scores of examples, as members of a version's record for `register_verdict`.

    Args:
        collection: collection of the versions; may be readonly.
        job: `before` and `after`, and the options of the gate.
        compared_with: version that `before` is of.

    Raises:
        InvalidRequest: as `judge_scores`.
    """
    account = _account(collection, job, None)
    return account.entered(verdict_of(judge_scores(job, gate_of(job, account)), compared_with))


def _account(collection: Collection, job: SavingJob, texts: Sequence[str] | None) -> Account:
    """Account of the judged queries; of scores, whose queries are not known, one for each number of them."""
    if texts is None:
        texts = [] if job.before is None else [f"{len(job.before)} scores of {collection.name}"]
    return Account.of(collection.store, texts)


class _Steps:
    """Progress of a judgement: queries encoded, canaries compared, the live version and this one ranked."""

    def __init__(self, observer: Observer):
        self._observer, self._started = observer, time.monotonic()

    def reach(self, done: int) -> None:
        """Report that so many steps are done.

        Raises:
            Cancelled: the observer stops it here.
        """
        self._observer.progress(Progress("judge", done, _STEPS, time.monotonic() - self._started))
        if done < _STEPS and self._observer.cancelled():
            raise Cancelled(f"stopped after {done} of {_STEPS} steps of the judgement; nothing was saved")


def _require_comparable(collection: Collection, head: Head, live: str) -> None:
    """Refuse judgements that cannot compare a head with the live version, before anything is encoded."""
    if head.learned_score is not None or collection.head(live).learned_score is not None:
        raise InvalidRequest(
            "judgements as evidence of a learned score, which they would rank by the inner product; give a "
            "function that scores held-out queries by a layer"
        )
    if collection.has_documents_of(live):
        raise Conflict(
            f"{live}, which is live, has documents of its own, so that judgements cannot compare the two by "
            "one corpus; give scores of examples as evidence, or promote another version first"
        )


def _by_judgements(
    collection: Collection,
    live: str,
    head: Head,
    encoder: TextEncoder | None,
    examples: Examples,
    job: SavingJob,
    gate: Gate,
    steps: _Steps,
    documents: EncodedDocuments | None,
) -> GateReport:
    steps.reach(1)
    ranked = HeldOut(examples, _seen(collection, examples, job))
    of_live = of_head = examples.states
    if collection.encoder_identity_of(live) != collection.encoder.identity:
        of_live = collection.encoder_of(live).encode_queries(examples.texts)
    overlap = None
    if encoder is not None:
        of_head = encoder.encode_queries(examples.texts)
    else:  # canaries are stored embeddings: they say nothing of an encoder that changed
        overlap = overlap_of_canaries(examples.snapshot, collection.head(live), head, seed=job.seed)
    steps.reach(2)
    before = ranked.answers(collection.head(live), of_live)
    steps.reach(3)
    if documents is None:
        after = ranked.answers(head, of_head)
    else:
        corpus, further = torch.as_tensor(documents.embeddings), further_of(documents)
        hop = head.hop_strength.item()
        (answers,) = ranked.answers_of_alike([head], [hop], of_head, corpus, further)
        after = answers[hop]
    return judge(
        before, after, gate, canary_overlap=overlap, need_slices=job.training is not None, seed=job.seed
    )


def _encoder_with(base: TextEncoder, change: EncoderChange) -> TextEncoder:
    """The encoder that will be served.

    Raises:
        InvalidRequest: a change that does not fit it.
    """
    try:
        return tuned(base, change, tuned_identity(base.identity, "0" * 64))
    except CorruptData as error:
        raise InvalidRequest(str(error)) from error


def _seen(collection: Collection, examples: Examples, job: SavingJob) -> Examples:
    """The judgements that it was trained on, as examples without queries: their documents count as seen."""
    none = examples.subset([])
    if not job.training:
        return none
    relevant = {id for of in job.training.values() for id, grade in of.items() if grade > 0}
    rows = collection.store.rows_of(sorted(relevant))
    positions = examples.snapshot.positions_of(np.array(sorted(rows.values()), np.int64))
    positions = positions[positions >= 0]
    return replace(none, relevant=[(positions, np.ones(len(positions), np.float32))])


def _live_layer(collection: Collection, layer: SearchLayer, live: str) -> SearchLayer:
    """The same attention by the version that answers now."""
    if isinstance(layer, CollectionLayer):
        return layer.with_model(live)
    return layer.with_head(collection.head(live), collection.snapshot_for(live))


def _require_whole(collection: Collection, parent: str, head: Head, encoder: EncoderChange | None) -> None:
    """Refuse a version without parts that its parent answers by."""
    record = collection.store.model(parent).record
    carried = {"memory": head.memory is not None, "query_encoder": encoder is not None}
    require_head_alone(parent, {name: part for name, part in record.items() if not carried.get(name)})


def _require_fitting(head: Head, dimension: int) -> None:
    if head.encoder_dim != dimension:
        raise DimensionMismatch(
            f"a head for embeddings of {head.encoder_dim} numbers; this collection's have {dimension}"
        )
    for name, tensor in head.own_tensors().items():
        if not tensor.isfinite().all():
            raise InvalidRequest(f"tensor {name!r} has numbers that are not finite; a head has none")
