"""What clients send: files of `add_files`, by paths or as bytes, and versions that were trained here.

The file of a version is safetensors: the head's tensors, those of the query encoder's change under
`query_encoder/`, and the request as JSON in the metadata.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias
from urllib.parse import quote

from dsearch.errors import InvalidRequest, Unavailable
from dsearch.jobs import ExampleScores, JudgedQueries

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dsearch.attention.retrieval.head import Head
    from dsearch.corpus.sent import SentFile
    from dsearch.encoder import EncoderChange, LearningEncoder

TrainedLayer: TypeAlias = "nn.Module | Mapping[str, Any]"  # SearchLayer, RemoteSearch, Head, tensors
TrainedEncoder: TypeAlias = "LearningEncoder | EncoderChange | None"
Score: TypeAlias = "Callable[[Any], Sequence[float] | Tensor]"
AnyEvidence: TypeAlias = "JudgedQueries | ExampleScores | Score | None"


@dataclass(frozen=True, slots=True)
class Upload:
    """Parts of a version that was trained here.

    Attributes:
        head: the head's tensors by name.
        encoder: change of the query encoder.
        parent: version that training started from; None: the live one.
    """

    head: Mapping[str, Any]
    encoder: EncoderChange | None
    parent: str | None


def plain_layer(layer: TrainedLayer) -> TrainedLayer:
    """The layer inside of a wrapper of torch; see `dsearch.training.saving.unwrapped`."""
    from dsearch.training.saving import unwrapped

    return layer if isinstance(layer, Mapping) else unwrapped(layer)


def savable_layer(layer: TrainedLayer) -> TrainedLayer:
    """The layer inside of a wrapper of torch, of which a version is made.

    Raises:
        InvalidRequest: a layer with a bias, here or over a server.
    """
    from dsearch.training.saving import require_no_bias

    layer = plain_layer(layer)
    if hasattr(layer, "with_model") and hasattr(layer, "bias"):
        require_no_bias(layer)
    return layer


def upload_of(layer: TrainedLayer, encoder: TrainedEncoder, parent: str | None) -> Upload:
    """The parts of a layer, of a head, or of a head's tensors.

    Raises:
        InvalidRequest: a layer without a head of its own, or with a score that no version can have.
    """
    from dsearch.encoder import LearningEncoder

    layer = plain_layer(layer)
    encoder = encoder or getattr(layer, "encoder", None)
    change = encoder.change() if isinstance(encoder, LearningEncoder) else encoder
    return Upload(_tensors_of(layer), change, parent or getattr(layer, "version", None))


def _tensors_of(layer: TrainedLayer) -> Mapping[str, Any]:
    if isinstance(layer, Mapping):
        return layer
    from dsearch.attention.retrieval.head import Head
    from dsearch.engine import SearchLayer, head_tensors
    from dsearch.training.saving import head_of_layer

    head = layer if isinstance(layer, Head) else getattr(layer, "head", None)
    if isinstance(layer, SearchLayer):
        head = head_of_layer(layer)
    if not isinstance(head, Head):
        raise InvalidRequest("a layer without a head; make it with train_head=True")
    return {name: tensor.numpy() for name, tensor in head_tensors(head).items()}


def evidence_by(
    layer: TrainedLayer,
    evidence: AnyEvidence,
    measure: str | None,
    live: Callable[[], str],
) -> JudgedQueries | ExampleScores | None:
    """Evidence as data: a function scores the held-out examples by the live version's layer and by this one.

    Args:
        layer: what was trained.
        evidence: of `save_model`.
        measure: name of the function's score.
        live: gives the version that answers now.

    Raises:
        InvalidRequest: a function, but no layer that can be opened for another version; scores that are not
            one number for each example.
    """
    from dsearch.training import scores_by

    if not callable(evidence):
        if measure is not None:
            raise InvalidRequest("measure names the score of a function; leave it out with other evidence")
        return evidence
    if not hasattr(layer, "with_model"):
        raise InvalidRequest(
            "a function as evidence scores layers; give a layer of dsearch.open_layer or a RemoteSearch"
        )
    trained: Any = layer
    if hasattr(trained, "sync"):
        trained.sync()
    before = scores_by(evidence, trained.with_model(version := live()))
    return ExampleScores(before, scores_by(evidence, trained), measure or "score", version)


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A version that is kept while the server encodes its documents, then scored by a function and judged.

    Attributes:
        layer: a `RemoteSearch`.
        evidence: the function.
        measure: name of its score.
    """

    layer: Any
    evidence: Score
    measure: str

    def scores_of_live(self, version: str) -> list[float]:
        """Score of each example by the version that answers now."""
        from dsearch.training import scores_by

        return scores_by(self.evidence, self.layer.with_model(version))

    def scores(self, version: str) -> list[float]:
        """Score of each by the version that the layer became."""
        from dsearch.training import scores_by

        return scores_by(self.evidence, self.layer.as_version(version))


def kept_version(
    layer: TrainedLayer, evidence: AnyEvidence, measure: str | None, options: Mapping[str, Any]
) -> KeptVersion | None:
    """The version to be judged once it is kept; None where evidence is at hand before.

    Raises:
        InvalidRequest: no `RemoteSearch`: a layer of this process has the documents of before.
    """
    if not callable(evidence) or not options.get("encode_documents"):
        return None
    if not hasattr(layer, "as_version"):
        raise InvalidRequest(
            "encode_documents with a function as evidence, over a server, needs a RemoteSearch: by it the "
            "function sees the documents that the server encodes; give one, or JudgedQueries, or "
            "ExampleScores, or save a layer of dsearch.open_layer by dsearch.save_model"
        )
    return KeptVersion(layer, evidence, measure or "score")


GATE_OPTIONS = ("seed", "promote", "accept", "risk", "alpha", "margin")  # of a verdict on scores


def verdict_options(options: Mapping[str, Any]) -> Any:
    """Those of the options of `save_model` that `judge_model` takes."""
    return {name: options[name] for name in GATE_OPTIONS if name in options}


def clean_up(layer: TrainedLayer) -> None:
    """Forget the draft of a `RemoteSearch`, whose head was handed in to be kept."""
    release = getattr(layer, "release", None)
    if release is not None:
        release()


def model_file(
    upload: Upload,
    evidence: JudgedQueries | ExampleScores | None,
    record: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> BinaryIO:
    """The body of `POST …/models/save`, as a temporary file: it is written from the tensors themselves.

    Raises:
        InvalidRequest: a record or evidence that is no JSON.
        Unavailable: the file cannot be written.
    """
    import tempfile

    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    from dsearch.training import evidence_fields

    tensors = {name: np.asarray(tensor, np.float32, order="C") for name, tensor in upload.head.items()}
    request = {**evidence_fields(evidence), **options, "parent": upload.parent, "record": record}
    if upload.encoder is not None:
        request["encoder"] = asdict(upload.encoder.training)
        tensors |= {
            f"query_encoder/{name}": tensor.detach().cpu().float().contiguous().numpy()
            for name, tensor in upload.encoder.tensors.items()
        }
    fields = {name: value for name, value in request.items() if value is not None}
    try:
        request_json = json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"not JSON ({error}); give text, finite numbers, lists and objects") from None
    try:
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as written:
            save_file(tensors, written.name, {"request": request_json})
            return open(written.name, "rb")  # the name goes, the file stays until it is closed
    except (OSError, SafetensorError) as error:
        raise Unavailable(
            f"the model could not be written to {tempfile.gettempdir()} before it is sent ({error}); free "
            "space there, or name another folder in TMPDIR"
        ) from error


def is_search_layer(layer: TrainedLayer) -> bool:
    """Return True for a layer of this process."""
    from dsearch.engine import SearchLayer

    return isinstance(layer, SearchLayer)


def layer_head(layer: TrainedLayer, tensors: Mapping[str, Any]) -> Head:
    """The head of a layer of this process, with its score and its memory; a new one of tensors alone."""
    from dsearch.attention.retrieval.head import Head
    from dsearch.engine import SearchLayer
    from dsearch.training.saving import head_of_layer

    if isinstance(layer, Head | SearchLayer):
        return layer if isinstance(layer, Head) else head_of_layer(layer)
    return head_of_arrays(tensors)


def head_of_arrays(tensors: Mapping[str, Any]) -> Head:
    """A head of these NumPy arrays."""
    import torch

    from dsearch.engine import head_from_tensors

    parameters = {name: torch.tensor(tensor) for name, tensor in tensors.items()}
    return head_from_tensors(parameters, len(parameters["key_delta"]))


GivenFiles: TypeAlias = (
    "Iterable[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str] | bytes]"  # paths; or by name
)


def named_files(files: Any) -> dict[str, Path | bytes]:
    """Files by the names that they are sent under; of paths without names the file's own.

    Raises:
        InvalidRequest: no file, two of one name, not a file, or a name that is no text.
    """
    if isinstance(files, str | bytes | os.PathLike):
        raise InvalidRequest(f"files={str(files)[:80]!r}; give a list of paths, or names with paths or bytes")
    pairs = files.items() if isinstance(files, Mapping) else ((Path(path).name, path) for path in files)
    named: dict[str, Path | bytes] = {}
    for name, source in pairs:
        if name in named:
            raise InvalidRequest(
                f"two files of the name {name[:80]!r}; give names with paths: {{NAME: PATH}}"
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"the name {name[:80]!r} is not UTF-8; give another: {{NAME: PATH}}"
            ) from None
        if isinstance(source, bytes):
            named[name] = source
        elif Path(source).is_file():
            named[name] = Path(source)
        else:
            raise InvalidRequest(f"{source}: no such file; give paths of files")
    if not named:
        raise InvalidRequest("no files; give one or more")
    return named


@contextmanager
def form_of(files: Mapping[str, Path | bytes]) -> Generator[tuple[BinaryIO, str]]:
    """The files as a form, in a temporary file, and its content type.

    Raises:
        Unavailable: a file cannot be read, or the form cannot be written.
    """
    boundary = uuid.uuid4().hex
    with tempfile.TemporaryFile() as form:
        try:
            for name, source in files.items():
                named = f"form-data; name=\"file\"; filename*=UTF-8''{quote(name, safe='')}"
                form.write(f"--{boundary}\r\nContent-Disposition: {named}\r\n\r\n".encode())
                if isinstance(source, bytes):
                    form.write(source)
                else:
                    with source.open("rb") as opened:
                        shutil.copyfileobj(opened, form, 1 << 20)
                form.write(b"\r\n")
            form.write(f"--{boundary}--\r\n".encode())
        except OSError as error:
            raise Unavailable(
                f"the files could not be written to {tempfile.gettempdir()} before they are sent ({error}); "
                "free space there, or name another folder in TMPDIR"
            ) from error
        yield form, f"multipart/form-data; boundary={boundary}"


@contextmanager
def files_on_disk(files: Mapping[str, Path | bytes]) -> Generator[list[SentFile]]:
    """The files for this process, those that are bytes in a temporary folder."""
    from dsearch.corpus.sent import SentFile

    with tempfile.TemporaryDirectory() as folder:
        placed: list[SentFile] = []
        for number, (name, source) in enumerate(files.items()):
            place = source if isinstance(source, Path) else Path(folder, str(number))
            if isinstance(source, bytes):
                place.write_bytes(source)
            placed.append(SentFile(name, place, 0, place.stat().st_size))
        yield placed
