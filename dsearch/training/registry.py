"""Register candidates as versions: where a training starts, and which of its results goes live.

`JobResult` is the result of a training or a tuning before it is registered, and as JSON, as tasks show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine import UNTRAINED, Collection, calls
from dsearch.engine.models.confidence import RECORDED
from dsearch.engine.models.files import SCOPE as VALUES
from dsearch.engine.models.files import undo_command
from dsearch.engine.models.ledger import Account, note, without_queries
from dsearch.errors import Command, Conflict
from dsearch.store import MemoryRow
from dsearch.training.candidate import Candidate, Recorded, RowsCandidate, StageCandidate
from dsearch.training.finetune.outcomes import remember_rows
from dsearch.training.finetune.second_stage import SCOPE as SECOND_STAGE
from dsearch.training.finetune.second_stage import stage_in_words
from dsearch.training.gate.decision import Outcome, sentence_of
from dsearch.training.memory import MEMORY_SCOPE, REMEMBER, with_inserted
from dsearch.training.tune import SCOPE

if TYPE_CHECKING:
    from dsearch.jobs import LearningJob
    from dsearch.training.loop.run_folder import RunFolder


# Scopes of versions that leave the head as it is: queries inserted, a second stage, values.
BEHIND = (REMEMBER, SECOND_STAGE, VALUES)


@dataclass(frozen=True, slots=True)
class Registration:
    """Outcome of registering a training.

    Attributes:
        version: registered version.
        live: promoted version: that one, or the tuned search that training started from; None if the live
            version did not change.
        parent: version that training started from.
        reason: reason of the decision, in words.
        sentence: the decision in one plain sentence.
        passed: version that may answer by its merits or by consent: the trained one or the tuned search; None
            if neither may.
        outdated_by: version that became live meanwhile, so that `passed` is kept and does not answer; None if
            none did.
        previous: version that `live` took the place of, the one before the whole training; None without one.
        undo: command that lets `previous` answer again; None without one.
    """

    version: str
    live: str | None
    parent: str
    reason: str
    sentence: str = ""
    passed: str | None = None
    outdated_by: str | None = None
    previous: str | None = None
    undo: str | None = None

    @property
    def model(self) -> str:
        """Version to inspect: the live one, else the trained one."""
        return self.live or self.version

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `live` says whether `model` answers."""
        return {
            "model": self.model,
            "live": self.live is not None,
            "trained": self.version,
            "parent": self.parent,
            "reason": self.reason,
            "verdict": self.sentence,
            "previous": self.previous,
            "undo": self.undo,
            "passed": self.passed,
            "outdated_by": self.outdated_by,
        }

    def in_place_of(self, previous: str, collection: Collection) -> Registration:
        """The same, with the way back to the version that answered before."""
        if self.live is None:
            return self
        return replace(self, previous=previous, undo=str(undo_command(collection.store, previous)))


def starting_version(collection: Collection) -> str:
    """Version that training starts from: the live model if it was tuned, else the untrained one.

    A trained model is no start, because it has learned from the queries that would be held out.
    """
    model = collection.store.model(collection.live_model)
    while model.parent is not None and model.record.get("scope") in BEHIND:
        model = collection.store.model(model.parent)
    return model.version if model.record.get("scope") == SCOPE else UNTRAINED


def register(
    collection: Collection,
    candidate: Candidate,
    *,
    parent: str = UNTRAINED,
    promote: bool = True,
    accept: bool = False,
) -> Registration:
    """Store a candidate as a version; make it live if it may be, else the tuned search if that may.

    A memory keeps the queries that were inserted into the live one until now; the gate has judged without.
    Learned values of the live version stay, too (engine/models/files.py). A candidate of values is a version
    like the one that they were learned behind, but for these.

    Args:
        collection: collection of the model.
        candidate: judged candidate. If its record names a version under `compared_with` or `live_at_start`,
            this one goes live only in place of that one.
        parent: the version that training started from.
        promote: False: the live version stays live.
        accept: True to promote it even if it failed the gate.
    """
    live, tuned, gate = collection.live_model, candidate.tuned, candidate.record["gate"]
    judged, candidate = candidate.record, replace(candidate, record=without_queries(candidate.record))
    if candidate.record.get("scope") == VALUES:
        parent = _present(collection, parent) or parent
        candidate = replace(
            candidate,
            head=collection.stored_head(parent).valuing(candidate.head),
            record={**_of_search(collection, parent), **candidate.record},
            encoder=collection.encoder_change_of(parent),
            documents=collection.encoded_documents_of(parent),
        )
    elif candidate.encoder is None:  # else past queries are of another encoder
        memory = collection.stored_head(live).memory
        candidate = replace(candidate, head=with_inserted(candidate.head, memory))
        tuned = None if tuned is None else replace(tuned, head=with_inserted(tuned.head, memory))
    version = _added(collection, candidate, parent, accepted=accept)
    passed = candidate.passed or (tuned is not None and tuned.passed)
    note(collection.store, judged, version, passed=passed)
    ready = _GoingLive(collection, parent, candidate.reason, live, candidate.record)
    if accept or (promote and candidate.passed):
        after = {} if accept else candidate.record
        return replace(ready, after=after).go_live(version, gate, "live" if candidate.passed else "accepted")
    if not promote or tuned is None or not tuned.passed:
        return Registration(version, None, parent, candidate.reason, _sentence(gate, "kept"))
    better = _added(collection, tuned, parent, started=version)
    ready = replace(ready, reason=f"{candidate.reason}; the tuned search does: {tuned.reason}")
    outcome: Outcome = "recalling" if tuned.record.get("scope") == MEMORY_SCOPE else "tuned"
    return ready.go_live(better, tuned.record["gate"], outcome, trained=version)


def _added(
    collection: Collection, candidate: Candidate, parent: str, *, accepted: bool = False, **more: Any
) -> str:
    """Store a candidate as a version, with the learned values of the live one; return its name."""
    record = {**candidate.record, "verdict": candidate.reason, "accepted": accepted, **more}
    head = candidate.head
    if candidate.documents is None:
        head, record = collection.with_values_of(collection.live_model, head, record)
    return collection.add_model(
        head,
        record,
        parent=parent,
        encoder=candidate.encoder,
        documents=candidate.documents,
        learned_from=candidate.learned_from,
    )


def register_verdict(
    collection: Collection,
    version: str,
    record: Mapping[str, Any],
    *,
    promote: bool = True,
    accept: bool = False,
) -> Registration:
    """Write the verdict on a version that nobody had judged into its record; make it live if it may be.

    Args:
        collection: collection of the version.
        version: its name.
        record: what was judged, and the gate's report under `gate`, as JSON.
        promote, accept: as of `register`.

    Raises:
        ModelNotFound.
        Conflict: as `calls.require_unjudged`.
    """
    calls.require_unjudged(collection, version)
    verdict = Recorded(record=without_queries(record))
    reason, gate = verdict.reason, record["gate"]
    collection.add_to_record(
        version, {**verdict.record, "verdict": reason, "accepted": accept, calls.OUTDATED_BY: None}
    )
    note(collection.store, record, version)
    parent = collection.store.model(version).parent or UNTRAINED
    if not (accept or (promote and verdict.passed)):
        return Registration(version, None, parent, reason, _sentence(gate, "kept"))
    ready = _GoingLive(collection, parent, reason, collection.live_model, {} if accept else record)
    return ready.go_live(version, gate, "live" if verdict.passed else "accepted")


@dataclass(frozen=True, slots=True)
class _GoingLive:
    """A version that may be live, by its verdict or by consent.

    Attributes:
        collection: its collection.
        parent: the version that training started from.
        reason: reason of the decision, in words.
        before: version that was live before the whole training.
        after: record that names the version in whose place alone it goes live; {} for any.
    """

    collection: Collection
    parent: str
    reason: str
    before: str
    after: Mapping[str, Any]

    def go_live(
        self, version: str, gate: Mapping[str, Any], outcome: Outcome, *, trained: str | None = None
    ) -> Registration:
        """Make a version live in place of the one that `after` names; else say why it is not.

        Args:
            version: its name.
            gate: the report on it.
            outcome: what becomes of it.
            trained: the version that was trained, where this one stands in for it or behind it.
        """
        trained, outdated = trained or version, _promoted(self.collection, version, self.after)
        if outdated is not None:
            by, why = outdated
            sentence = _sentence(gate, "outdated")
            return Registration(trained, None, self.parent, f"{self.reason}; {why}", sentence, version, by)
        sentence = _sentence(gate, outcome)
        made = Registration(trained, version, self.parent, self.reason, sentence, version)
        return made.in_place_of(self.before, self.collection)


def _sentence(gate: Mapping[str, Any], outcome: Outcome) -> str:
    """The decision in one plain sentence, also where the report withholds its figures."""
    if not gate.get("withheld"):
        return sentence_of(gate, outcome)
    live = "is live, as you asked" if outcome == "accepted" else "is not live"
    return f"The new version {live}: {gate['reason']}."


def _promoted(collection: Collection, version: str, record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Make a version live in place of the one that its record names; else which is live, and what to do.

    A verdict holds while the version is live that it was compared with, or that was live when the training
    began: if a third one is live by now, it says nothing. Then the version's record names that one, and it
    can be judged again.
    """
    started = record.get("compared_with") or record.get("live_at_start")
    try:
        collection.promote(version, after=_present(collection, started))
    except Conflict:
        live = collection.live_model
        if started in (None, live):
            raise
        when = f"after the comparison with {started}"
        if record.get("compared_with") is None:
            when = f"during the run, which began with {started}"
        command = Command("compare", (live, version, "-c", collection.name, "--data", "JUDGEMENTS"))
        why = (
            f"not promoted, since {live} became live {when}: judge it again by `{command}` or by scores of "
            f"{live} and {version} (judge_model), or promote it"
        )
        verdict = f"{collection.store.model(version).record['verdict']}; {why}"
        collection.add_to_record(version, {calls.OUTDATED_BY: live, "verdict": verdict})
        return live, why
    return None


def _present(collection: Collection, started: str | None) -> str | None:
    """`started`, or the live version if it is that one with a query memory that was begun since.

    Inserted queries change no head, and a new one takes them over.
    """
    live = collection.live_model
    begun = collection.store.model(live)
    return live if started and (begun.record.get("scope"), begun.parent) == (REMEMBER, started) else started


def register_outcomes(
    collection: Collection, rows: Sequence[MemoryRow], record: Mapping[str, Any], registered: Registration
) -> Registration:
    """Let rows of feedback answer that passed the gate, unless another version went live meanwhile.

    Args:
        collection: collection of the model.
        rows: rows to be written.
        record: record of their `OutcomeMemory`.
        registered: outcome of the training that they were judged in.
    """
    before = registered.previous or collection.live_model
    live = remember_rows(collection, rows, record)
    if live is None:
        outdated_by = collection.live_model
        reason = (
            f"{registered.reason}; rows of past queries: not added, since {outdated_by} became live during "
            f"the run, which compared with {record['live']}: train from the feedback again"
        )
        return replace(registered, reason=reason, outdated_by=outdated_by)
    reason = f"{registered.reason}; rows of past queries: {record['gate']['reason']}"
    sentence = sentence_of(record["gate"], "remembered")
    made = Registration(registered.version, live, record["live"], reason, sentence, live)
    return made.in_place_of(before, collection)


def _of_search(collection: Collection, version: str) -> dict[str, Any]:
    """Members of a version's record that also hold for one that searches alike."""
    record = collection.store.model(version).record
    shared = {name: record[name] for name in ("training_queries",) if name in record}
    calibration = collection.calibrations.of(version)
    return shared if calibration is None else {**shared, RECORDED: calibration.to_dict()}


def register_second_stage(
    collection: Collection, stage: SecondStage, record: Mapping[str, Any], registered: Registration
) -> Registration:
    """Register a second stage behind the version that it was trained to follow, and let it answer.

    Args:
        collection: collection of the model.
        stage: second stage, which passed its gate.
        record: of its training.
        registered: outcome of the training that it was trained in.
    """
    base, before = registered.passed, registered.previous or collection.live_model
    if base is None:  # it follows the version that was live when the training began
        started = collection.store.model(registered.version).record.get("live_at_start")
        base = _present(collection, started) or collection.live_model
    head, gate = collection.stored_head(base).reranking(stage), record["gate"]
    record = {**record, "verdict": gate["reason"], "accepted": False, "live_at_start": base}
    # Its evidence is that of the first stage, so the fit to that one holds.
    calibration = collection.calibrations.of(base)
    if calibration is not None:
        record[RECORDED] = calibration.to_dict()
    version = collection.add_model(head, record, parent=base, encoder=collection.encoder_change_of(base))
    reason = f"{registered.reason}; with a second stage: {gate['reason']}"
    ready = _GoingLive(collection, base, reason, before, record)
    return ready.go_live(version, gate, "live", trained=registered.version)


TOLD_OF_TRAINING = ("examples", "epochs", "seconds", "gate", "headroom")  # of a record, in a task's result
TOLD_WHERE_THERE = ("ledger", "share", "keyword_factor", "kind", "values", "tuned", "outcomes")  # of the same
TOLD_OF_TUNING = ("keyword_weight", "hop_strength", "k1", "b", "scores", "examples", "seconds", "gate")


def summary(
    registered: Registration,
    record: Mapping[str, Any],
    left_out: Mapping[str, int],
    second_stage: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the result, as in a task; `second_stage`: record of one that was fitted, None without."""
    columns = TOLD_OF_TUNING if record.get("scope") in ("tune", "memory") else TOLD_OF_TRAINING
    return {
        **registered.to_dict(),
        "left_out": dict(left_out),
        **{name: record.get(name) for name in columns},
        **{name: record[name] for name in TOLD_WHERE_THERE if record.get(name) is not None},
        "second_stage": None if second_stage is None else stage_in_words(second_stage),
    }


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job, before it is registered.

    Attributes:
        result: the head, its record and the gate's report.
        parent: the version that it started from.
        examples: the number of queries, or documents, that it learned from.
        left_out: the number of lines that could not be used, by kind.
        second_stage: trained to follow what goes live; None where the collection keeps no tokens.
        outcomes: rows of the query memory that feedback is worth; None without any.
        run: folder of the run, which can be gone on with until the result is stored; None without one.
    """

    result: Candidate
    parent: str
    examples: int
    left_out: Mapping[str, int]
    second_stage: StageCandidate | None = None
    outcomes: RowsCandidate | None = None
    run: RunFolder | None = None

    def in_place_of(self, live: str) -> JobResult:
        """The same result, to go live only if `live` is still the live version then."""
        record = {**self.result.record, "live_at_start": live}
        return replace(self, result=replace(self.result, record=record))

    def entered(self, account: Account) -> JobResult:
        """The same result with the account of its judged queries in every record."""
        result, rows, stage = self.result, self.outcomes, self.second_stage
        result = replace(result, record=account.entered(result.record))
        if (tuned := result.tuned) is not None:
            record = without_queries(account.entered(tuned.record))
            more = {"tuned": record} if result.record.get("tuned") is not None else {}
            result = replace(result, tuned=replace(tuned, record=record), record={**result.record, **more})
        return replace(
            self,
            result=result,
            outcomes=None if rows is None else replace(rows, record=account.entered(rows.record)),
            second_stage=None if stage is None else replace(stage, record=account.entered(stage.record)),
        )

    def register(self, collection: Collection, job: LearningJob) -> Registration:
        """Store the result as a version, and make it live if the gate passed.

        Rows of past queries that passed go live in its place; a second stage that passed goes live behind it.
        """
        registered = self.registered(collection, promote=job.promote, accept=job.accept)
        if self.run is not None:
            self.run.release()
        return registered

    def registered(self, collection: Collection, *, promote: bool, accept: bool) -> Registration:
        """`register`, by the options of a job; the run's folder is left as it is."""
        registered = register(collection, self.result, parent=self.parent, promote=promote, accept=accept)
        rows, stage = self.outcomes, self.second_stage
        for further in (rows if rows is not None and rows.passed else None, stage):
            if further is not None:
                note(collection.store, further.record, registered.version)
        if rows is not None and rows.passed and promote:
            return register_outcomes(collection, rows.rows, without_queries(rows.record), registered)
        if stage is None or not stage.passed or not promote or self.result.head.second_stage is not None:
            return registered  # no second stage, or it is part of the version
        return register_second_stage(collection, stage.stage, without_queries(stage.record), registered)

    def summary(self, registered: Registration) -> dict[str, Any]:
        """The result as JSON, as tasks show it."""
        stage = None if self.second_stage is None else self.second_stage.record
        return summary(registered, without_queries(self.result.record), self.left_out, stage)
