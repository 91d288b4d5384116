"""`RunFolder`: files that a training run writes, and from which it resumes.

run.json           model, data and options of the run; whether it is finished
metrics.jsonl      a line for each epoch of each stage
tensorboard/       the same, if TensorBoard is installed
fold-0/, train/    a stage's checkpoint, and its answers to held-out queries; deleted when the run is finished
last-good.safetensors   the head of the last epoch before the loss became NaN

A checkpoint holds tensors and numbers, nothing pickled:

    tensors    learned parameters, Adam's moments, the order of the present epoch, the random generator
    numbers    epoch, step, loss sums, seconds

Together they determine the rest of the run, so a resumed run ends, bit for bit, like an uninterrupted one (on
one thread; the order of sums over threads varies).
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as save_arrays
from safetensors.torch import save
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.errors import CorruptData, InvalidRequest
from dsearch.index.durable import replace_file
from dsearch.training.gate.held_out import Answers
from dsearch.training.loop.loop import Checkpoint, Epoch, Student, TrainingDiverged

FORMAT = 2
_LIVE = "live_at_start"
_PARTS, _EVIDENCE, _ALONE = ("all", "seen", "unseen"), ("precision", "unseen_precision"), "answers"
_RUN, _METRICS, _CHECKPOINT = "run.json", "metrics.jsonl", "checkpoint.safetensors"

Key = TypeVar("Key")


class RunFolder:
    """One run.

    Args:
        path: its folder, created if missing.
        described: everything that determines the run, as JSON: scope, options, digest of the data. Its
            `defaults` are no part of it: an option that is missing, there or here, counts as its default, so
            that a run goes on under a release that has more options. Nor is `live_at_start`, the version
            that was live when the run began.
        resume: continue the run in the folder.

    Raises:
        InvalidRequest: a run lies there and `resume` was not asked for; none does and it was; another run
            than the described one does, or one that is finished.
        CorruptData: its description cannot be read.
    """

    def __init__(self, path: Path, described: dict[str, Any], *, resume: bool = False):
        self.path = path
        described = json.loads(json.dumps({"format": FORMAT, **described}))
        defaults = described.pop("defaults", {})
        self.live_at_start: Any = described.pop(_LIVE, None)
        file = path / _RUN
        if resume:
            self._require_same(described, defaults)
        elif file.exists() or (path.exists() and any(path.iterdir())):
            raise InvalidRequest(
                f"{path} is not empty; add --resume to go on with the run in it, or give another folder"
            )
        else:
            path.mkdir(parents=True, exist_ok=True)
            live = {} if self.live_at_start is None else {_LIVE: self.live_at_start}
            self._write_run({**described, **live, "finished": False})
        self._board: Any = None
        self._on_hold = False

    def stage(self, name: str) -> Stage:
        """The part of the run called `name`: "fold-0", "train"."""
        return Stage(self, name)

    def add_metrics(self, stage: str, epoch: int, **values: float | None) -> None:
        """Append a line; NaN and what is None are null."""
        clean = {key: None if value is None or value != value else value for key, value in values.items()}
        with (self.path / _METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": stage, "epoch": epoch, **clean}) + "\n")
        if self._board is None:
            self._board = _board(self.path)
        for key, value in clean.items():
            if value is not None and self._board:
                self._board.add_scalar(f"{stage}/{key}", value, epoch)
        if self._board:
            self._board.flush()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines so far; the last one is left out if a kill cut it off."""
        file = self.path / _METRICS
        lines: list[dict[str, Any]] = []
        for line in file.read_text("utf-8").splitlines() if file.is_file() else []:
            try:
                lines.append(json.loads(line))
            except ValueError:
                break
        return lines

    def forget_metrics_after(self, stage: str, epoch: int) -> None:
        """Drop the lines of epochs that will be trained again."""
        lines = [line for line in self.metrics() if line["stage"] != stage or line["epoch"] <= epoch]
        unfinished = self.path / f".{_METRICS}.writing"
        unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        os.replace(unfinished, self.path / _METRICS)

    def keep_last_good(self, head: Head) -> Path:
        """Write the head of the last epoch that ended well."""
        path = self.path / "last-good.safetensors"
        path.write_bytes(
            save({name: tensor.detach().cpu().clone() for name, tensor in head.state_dict().items()})
        )
        return path

    def hold(self) -> None:
        """Let `finish` wait for `release`: until then the run can be gone on with."""
        self._on_hold = True

    def release(self) -> None:
        """Finish a run that was held."""
        self._on_hold = False
        self.finish()

    def finish(self) -> None:
        """The run is done: its metrics stay, its checkpoints go. Without effect while it is held."""
        if self._on_hold:
            return
        described = json.loads((self.path / _RUN).read_text("utf-8"))
        self._write_run({**described, "finished": True})
        for folder in self.path.iterdir():
            if (folder / _CHECKPOINT).is_file() or folder.name.startswith("fold-"):
                shutil.rmtree(folder)
        if self._board:
            self._board.close()

    def _require_same(self, described: dict[str, Any], defaults: dict[str, Any]) -> None:
        file = self.path / _RUN
        if not file.is_file():
            raise InvalidRequest(f"{self.path} holds no run to go on with; leave --resume out to start one")
        try:
            recorded = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise CorruptData(
                f"{file}: cannot be read ({error}); delete the folder and train again"
            ) from error
        if recorded.pop("finished", False):
            raise InvalidRequest(f"the run in {self.path} is finished; give another folder for a new one")
        self.live_at_start = recorded.pop(_LIVE, None) or self.live_at_start  # none in earlier releases
        if "options" in recorded and "options" in described:
            options = recorded["options"], described["options"]
            recorded["options"], described["options"] = _differing_options(*options, defaults)
        differing = [key for key in {*described, *recorded} if described.get(key) != recorded.get(key)]
        if differing:
            differences = "; ".join(
                f"{key} is {recorded.get(key)!r} there, {described.get(key)!r} here"
                for key in sorted(differing)
            )
            raise InvalidRequest(
                f"{self.path} holds another run: {differences}. Repeat its command, or start anew"
            )

    def _write_run(self, content: dict[str, Any]) -> None:
        replace_file(self.path / _RUN, json.dumps(content, indent=1).encode())


def _differing_options(
    earlier: Mapping[str, Any], current: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of two runs that differ, a missing one as its default."""
    earlier, current = {**defaults, **earlier}, {**defaults, **current}
    names = [name for name in {**earlier, **current} if earlier.get(name, ...) != current.get(name, ...)]
    return (
        {name: earlier[name] for name in names if name in earlier},
        {name: current[name] for name in names if name in current},
    )


class Stage:
    """One training of a run: of a fold, or of all examples."""

    def __init__(self, run: RunFolder, name: str):
        self.run, self.name = run, name
        self.folder = run.path / name
        self.folder.mkdir(exist_ok=True)

    def add_metrics(self, epoch: Epoch, student: Student, **more: float | None) -> None:
        """Write the line of an epoch; measures of held-out queries are null if there are none."""
        held_out = epoch.after or {"all": None, "seen": None, "unseen": None}
        self.run.add_metrics(
            self.name,
            epoch.number,
            loss=epoch.loss,
            retention=epoch.retention,
            **{f"ndcg_at_10_{name}": value for name, value in held_out.items()},
            temperature=student.head.temperature.item(),
            keyword_weight=student.head.keyword_weight.mean().item(),
            seconds=round(epoch.elapsed_s, 3),
            **more,
        )

    def forget_unfinished_metrics(self) -> None:
        """Drop the lines of epochs after the checkpoint: they will be trained, and told, again."""
        checkpoint = self.checkpoint()
        self.run.forget_metrics_after(self.name, 0 if checkpoint is None else checkpoint[1]["epoch"] - 1)

    def checkpoint(self) -> Checkpoint | None:
        """Checkpoint to resume from; None at the start."""
        return read_checkpoint(self.folder / _CHECKPOINT)

    def keep_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Put it in the place of the one before."""
        write_checkpoint(self.folder / _CHECKPOINT, *checkpoint)

    def answers(self, name: str) -> Answers | None:
        """Answers that were kept under this name."""
        return self.answers_in(name).get(_ALONE)

    def several_answers(self, names: Mapping[Key, str]) -> dict[Key, Answers]:
        """Those of them that were kept, by key."""
        read = {key: self.answers(name) for key, name in names.items()}
        return {key: of for key, of in read.items() if of is not None}

    def answers_in(self, name: str) -> dict[str, Answers]:
        """Answers that were kept together under this name, by label; none where it is not there.

        Raises:
            CorruptData: the file is damaged.
        """
        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            return {}
        try:
            arrays = load_file(path)
            return {
                label: Answers(
                    *(arrays[f"{label}/{part}"] for part in _PARTS),
                    *(arrays.get(f"{label}/{part}") for part in _EVIDENCE),
                )
                for label in {key.rpartition("/")[0] for key in arrays}
            }
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise _unreadable(path, error) from error

    def keep_answers(self, name: str, answers: Answers) -> None:
        """Keep answers to held-out queries, at once or not at all."""
        self.keep_answers_in(name, {_ALONE: answers})

    def keep_answers_in(self, name: str, answers: Mapping[str, Answers]) -> None:
        """Keep several together, by labels without a slash."""
        arrays = {
            f"{label}/{part}": np.ascontiguousarray(values)
            for label, answer in answers.items()
            for part in (*_PARTS, *_EVIDENCE)
            if (values := getattr(answer, part)) is not None
        }
        replace_file(self.folder / f"{name}.safetensors", save_arrays(arrays))

    def arrays(self, names: Mapping[Key, str]) -> dict[Key, np.ndarray]:
        """Those arrays that were kept under these names, by key.

        Raises:
            CorruptData: a file is damaged.
        """
        paths = {key: self.folder / f"{name}.npy" for key, name in names.items()}
        return {key: _array(path) for key, path in paths.items() if path.is_file()}

    def keep_array(self, name: str, array: np.ndarray) -> None:
        """Keep an array, at once or not at all."""
        content = io.BytesIO()
        np.save(content, array)
        replace_file(self.folder / f"{name}.npy", content.getvalue())


class ReadingStage:
    """A stage whose checkpoint another process keeps: it is read, and nothing is written."""

    def __init__(self, stage: Stage):
        self._stage = stage

    def checkpoint(self) -> Checkpoint | None:
        """Checkpoint to resume from."""
        return self._stage.checkpoint()

    def keep_checkpoint(self, checkpoint: Checkpoint) -> None:
        """The other process does."""


def _board(path: Path) -> Any:
    """TensorBoard's writer, or False where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    return SummaryWriter(str(path / "tensorboard"))


def write_checkpoint(path: Path, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Put this in the place of the checkpoint that is there, at once or not at all."""
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace_file(path, save(content, metadata={"numbers": json.dumps(numbers)}))


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read the last checkpoint; None if there is none.

    Raises:
        CorruptData: the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return tensors, json.loads((file.metadata() or {})["numbers"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise _unreadable(path, error) from error


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path)
    except (OSError, EOFError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CorruptData:
    return CorruptData(f"{path}: cannot be read ({error}); delete the run's folder and train again")


@contextmanager
def keeping_last_good(run: RunFolder | None) -> Iterator[None]:
    """Keep the head of the last good epoch of a training that diverges; its error then says where."""
    try:
        yield
    except TrainingDiverged as error:
        if run is not None and error.good_epoch:
            path = run.keep_last_good(error.student.head)
            error.add_note(f"the head after epoch {error.good_epoch} is in {path}")
        raise
