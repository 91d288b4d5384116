"""Calls that begin tasks (training, evaluation, upkeep), and those about tasks.

Whoever answers a call in this process has ended its task when the call returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any

from dsearch.jobs import ExampleScores, Grades
from dsearch.operations.declared import Call, call
from dsearch.results import Task, TaskPage

Options = Mapping[str, Any]


@call("POST", "/v1/collections/{collection}/files", scope="write", repeatable=False)
class AddFiles(Call[Task]):
    """Read files as `dsearch index` reads them, and store them as documents.

    The task's result (`FilesResult`) names each file with its documents, or why it has none. A file of the
    same name as one that was sent before replaces it.

    Args:
        collection: its name.
        files: paths, which are sent under the names of the files; or names with paths or bytes, such as
            `{"notes/a.md": "a.md", "b.txt": b"text"}`. A server takes 1000 files and 256 MiB in one call.
    """

    collection: str
    files: Any


@call("POST", "/v1/collections/{collection}/train", renamed={"source": "from"}, repeatable=False)
class Train(Call[Task]):
    """Train a new version, and promote it if it is better on held-out queries.

    Args:
        collection: its name.
        queries: query id → text, with judgements.
        judgements: query id → document id → grade.
        options: what else to learn from, and how: see `dsearch.jobs.TrainingJob`.
    """

    collection: str
    _: KW_ONLY
    queries: Mapping[str, str] | None = None
    judgements: Grades | None = None
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/tune", repeatable=False)
class Tune(Call[Task]):
    """Choose keyword weight, k1 and b, and hop strength on judgements.

    Args:
        collection: its name.
        queries: query id → text; a few dozen suffice.
        judgements: query id → document id → grade.
        options: how: see `dsearch.jobs.TuningJob`.
    """

    collection: str
    queries: Mapping[str, str]
    judgements: Grades
    _: KW_ONLY
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/evaluate", repeatable=False)
class Evaluate(Call[Task]):
    """Score ways to search on judgements, side by side.

    Args:
        collection: its name.
        queries: query id → text.
        judgements: query id → document id → grade.
        model: a trained version next to dense, keyword and hybrid; the live one when not given.
        systems: what to compare in their place, such as `[{"model": "v0"}, {"model": "v1"}]`, with `"mode"`
            where it is not hybrid; the second's wins and losses against the first are named.
        training: judgements that were trained on, to score seen and unseen documents apart.
    """

    collection: str
    queries: Mapping[str, str]
    judgements: Grades
    _: KW_ONLY
    model: str | None = None
    systems: Sequence[Mapping[str, str]] | None = None
    training: Grades | None = None


@call("POST", "/v1/collections/{collection}/refresh", repeatable=False)
class Refresh(Call[Task]):
    """Rebuild the index, its keys projected by the live model.

    What is None stays as it was.

    Args:
        collection: its name.
        kind: how keys are kept from now on: "auto", "Flat", "SQ8", "HNSW", "IVF", …
        recall_target: recall@10 that an approximate kind is tuned for.
        memory_bytes: what the keys may take when "auto" chooses.
        queries: texts to tune an approximate kind by; sentences of the documents when None.
    """

    collection: str
    _: KW_ONLY
    kind: str | None = None
    recall_target: float | None = None
    memory_bytes: int | None = None
    queries: Sequence[str] | None = None


@call("POST", "/v1/collections/{collection}/compact", repeatable=False)
class Compact(Call[Task]):
    """Compact the files, and make deleted and replaced data unreadable.

    `complete` in the task's result says whether nothing of it is left in any file; `note` what to do about
    releases that shards of a cluster answer with.
    """

    collection: str


@call("POST", "/v1/collections/{collection}/migrate", repeatable=False)
class Migrate(Call[Task]):
    """Encode a collection with the next encoder, and switch when that is done.

    Which encoder that is the settings of whoever answers say (`next_encoder`, else its own).

    Args:
        collection: its name.
        encoder: what it must be; it is compared and chooses nothing.
    """

    collection: str
    _: KW_ONLY
    encoder: str | None = None


@call("POST", "/v1/collections/{collection}/models/save", repeatable=False)
class SaveModel(Call[Task]):
    """Judge what was trained here, and promote it if evidence shows that it is better.

    Args:
        collection: its name.
        layer: a trained layer (also inside of `AveragedModel` and the like), its head, or the head's tensors.
        evidence: held-out judged queries (`JudgedQueries`), scores by both versions (`ExampleScores`), or a
            function that scores held-out examples by a layer, one number each, more is better: it is called
            here, with the live version's layer and with this one. With encode_documents the call waits until
            a server has encoded them, and then scores and `judge_model` decide. None: the version is kept and
            does not answer.
        measure: name of the function's score, for the report.
        encoder: query encoder that learned with it; that of the layer when None.
        parent: version that it was trained from; that of the layer, else the live one, when None.
        record: what should be known of it later, as JSON.
        options: see `dsearch.jobs.SavingJob`.
    """

    collection: str
    layer: Any
    _: KW_ONLY
    evidence: Any = None
    measure: str | None = None
    encoder: Any = None
    parent: str | None = None
    record: Mapping[str, Any] | None = None
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/models/{version}/judge", repeatable=False)
class JudgeModel(Call[Task]):
    """Judge a version that was kept without a verdict.

    Args:
        collection: its name.
        version: one that does not answer and was not judged before.
        evidence: scores of held-out examples by the live version and by this one. It is promoted in place of
            that live version only: if another one became live meanwhile, it can be judged again.
        options: promote, accept, risk, alpha, margin and seed: see `dsearch.jobs.SavingJob`.
    """

    collection: str
    version: str
    evidence: ExampleScores
    _: KW_ONLY
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("GET", "/v1/tasks/{id}")
class ReadTask(Call[Task]):
    """Return a task: its state, progress and result."""

    id: str


@call("GET", "/v1/tasks/{id}")
class WaitForTask(Call[Task]):
    """Wait for the end of a task and return it; look at its `state`. A server is asked again and again.

    Args:
        id: of the task.
        timeout_s: how long to wait.
        every_s: how long between two questions.
        on_progress: told of the task after each.

    Raises:
        Unavailable: it has not ended in time; it goes on.
    """

    id: str
    _: KW_ONLY
    timeout_s: float = 3600.0
    every_s: float = 0.5
    on_progress: Callable[[Task], None] | None = None


@call("GET", "/v1/tasks", query=("collection", "state", "limit", "cursor"))
class ListTasks(Call[TaskPage]):
    """List tasks, the latest first."""

    _: KW_ONLY
    collection: str | None = None
    state: str | None = None
    limit: int = 50
    cursor: str | None = None


@call("DELETE", "/v1/tasks/{id}")
class CancelTask(Call[Task]):
    """Cancel a task; its partial work is dropped."""

    id: str
