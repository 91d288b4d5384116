"""Options that several commands share, each described once, and those derived from a declaration."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.cli.session import home_option
from dsearch.declared import Option, options_of, type_of
from dsearch.errors import amount

_collection = typer.Option("--collection", "-c", help="The collection's name.")
CollectionName = Annotated[str, _collection]
CollectionOrGroup = Annotated[str | None, _collection]
HomeFolder = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of the collections [default: index].", callback=home_option),
]
EncoderName = Annotated[
    str | None, typer.Option("--encoder", help="A sentence-transformers model, or the folder of one.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:N or mps [default: cpu].")]
BackendName = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help="Back end of the encoder: torch, openvino, or auto: OpenVINO where it is installed, prepared "
        "once in the background, else torch [default: auto].",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads of all native libraries [default: all cores].")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
SearchMode = Annotated[str, typer.Option("--mode", help="hybrid, dense or keyword.")]
ModelVersion = Annotated[
    str | None, typer.Option("--model", help="A model's version [default: the live one].")
]
Hops = Annotated[
    int | None,
    typer.Option(
        "--hops",
        help="Rounds of search; from the second on, hits refine the query [default: the model's, 1 or 2].",
    ),
]
HopStrength = Annotated[
    float | None, typer.Option("--hop-strength", help="How far a hop turns the query [default: the model's].")
]
Language = Annotated[
    str | None,
    typer.Option(
        "--language",
        help="Language of a new collection, for keyword search [default: english]: one, a list as "
        "german,english, or auto, for texts in several.",
    ),
]
SearchFields = Annotated[
    list[str] | None,
    typer.Option(
        "--search-fields",
        metavar="FIELDS",
        help="New collection: metadata fields whose strings are words for keyword search, as authors,tags; "
        "repeatable.",
    ),
]
PassageTokens = Annotated[
    int | None,
    typer.Option(
        "--passage-tokens",
        help="New collection: maximum tokens of a passage [default: the encoder's window].",
    ),
]
Overlap = Annotated[
    int | None,
    typer.Option(
        "--overlap", help="New collection: maximum tokens that passages share [default: an eighth]."
    ),
]
NoPassages = Annotated[bool, typer.Option("--no-passages", help="New collection: truncate long documents.")]
KeyKind = Annotated[
    str | None,
    typer.Option(
        "--kind", help="New collection: kind of index: auto, Flat, SQ8, HNSW, IVF, … [default: Flat]."
    ),
]
FilterText = Annotated[
    str | None,
    typer.Option("--filter", help='Condition on metadata, as JSON: \'{"year": {"gte": 2000}}\'.'),
]
BeirData = Annotated[
    Path,
    typer.Option(
        "--data",
        help="Judgements: a BEIR folder (queries.jsonl, qrels/*.tsv), or a file of query, document and grade "
        "as CSV, TSV, JSON lines or TREC.",
    ),
]
ExcludePairs = Annotated[
    Path | None,
    typer.Option("--exclude", help="TSV of query and document ids to exclude from rankings and scores."),
]


Vector = Annotated[
    str | None,
    typer.Option(
        "--vector",
        help="Vector in place of the query's embedding: a JSON list of numbers, or a .json or .npy file.",
    ),
]
Vectors = Annotated[
    str | None,
    typer.Option(
        "--vectors",
        help="Vectors in place of texts: a JSON list of lists of numbers, or a .json or .npy file.",
    ),
]
Dimension = Annotated[
    int | None,
    typer.Option(
        "--dimension",
        min=1,
        help="New collection: length of embeddings of your own, which come with the documents.",
    ),
]


def vectors_of(text: str | None, name: str = "vectors") -> list[list[float]] | None:
    """Read vectors from JSON or from a file; one vector is a list of one.

    Raises:
        InvalidRequest: neither, or not finite numbers.
    """
    if text is None:
        return None
    import numpy as np

    from dsearch.client.wire import numbers
    from dsearch.errors import InvalidRequest

    try:
        if text.lstrip().startswith("["):
            read: object = json_of(text, name, "[0.6, 0.8]")
        elif text.endswith(".npy"):
            read = np.load(text, allow_pickle=False)
        else:
            read = json_of(Path(text).read_text(), name, "[0.6, 0.8]")
        array = np.asarray(read, np.float64)
    except (OSError, ValueError, TypeError, EOFError, OverflowError) as error:
        raise InvalidRequest(
            f"{name}={text[:80]!r} is no vector ({error}); give a JSON list, a .json or a .npy file"
        ) from None
    rows = array[None] if array.ndim == 1 else array
    return numbers(rows).tolist()


def vector_of(text: str | None) -> list[float] | None:
    """Read one vector; see `vectors_of`."""
    read = vectors_of(text, "vector")
    if read is not None and len(read) != 1:
        from dsearch.errors import InvalidRequest

        raise InvalidRequest(f"vector={(text or '')[:80]!r} holds {amount(len(read), 'vector')}; give one")
    return None if read is None else read[0]


def filter_of(text: str | None) -> object | None:
    """The filter of --filter, which the store checks.

    Raises:
        InvalidRequest: not JSON.
    """
    return None if text is None else json_of(text, "--filter", '{"year": {"gte": 2000}}')


def json_of(text: str, name: str, example: str) -> object:
    """A JSON value that was given as an argument.

    Raises:
        InvalidRequest: not JSON.
    """
    from dsearch.errors import InvalidRequest

    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{name} {text[:80]!r} is not JSON ({error}); use an object such as {example}, in single quotes"
        ) from None


def names_in(text: str) -> list[str]:
    """Names of a list with commas, without the blanks around them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def field_names(texts: Sequence[str] | None) -> list[str] | None:
    """Names of all lists with commas; None if none was given."""
    return names_in(",".join(texts)) if texts else None


def of_group(context: typer.Context, collection: str | None, home: Path | None) -> tuple[str, Path | None]:
    """Collection and home of a command within a group: its own options, or else those given to the group."""
    collection_of_group, home_of_group = context.obj
    return collection or collection_of_group, home or home_of_group


_DATA_FLAGS = {"judgements": "--data", "trusted_keys": "--trusted-keys", "teacher": "--teacher"}


def with_options_of(
    declaration: type, *, without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command: its `**options` become one option for each of a declaration, but for some.

    The command's other annotations must be evaluated in its module.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        derived = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=_annotation(field, about),
            )
            for name, (field, about) in options_of(declaration).items()
            if about.cli and name not in without
        ]
        every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters] + derived
        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return command

    return decorate


def as_flag(name: str, value: object = None) -> str:
    """An option as the command line spells it: `--scope full`, or its flag alone."""
    from dsearch.jobs import TrainingJob

    declared = options_of(TrainingJob).get(name)
    flag = _DATA_FLAGS.get(name) or _flag(name, None if declared is None else declared[1])
    return flag if value is None or isinstance(value, bool | list | dict) else f"{flag} {value}"


def _flag(name: str, about: Option | None) -> str:
    if about is not None and about.flag is not None:
        return about.flag
    return f"--{name.replace('_', '-')}"


def _annotation(field: dataclasses.Field[Any], about: Option) -> Any:
    plain, optional = type_of(field)
    kind: Any = plain | None if optional else plain
    flag = _flag(field.name, about)
    if field.default is True and "/" not in flag:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    text = about.help[0].upper() + about.help[1:]
    if about.choices and not all(choice in text for choice in about.choices):
        text += f": {', '.join(about.choices)}"
    return Annotated[kind, typer.Option(*flag.split(), help=f"{text}.")]
