"""One toy of each kind that the architecture guide says how to add, as edits of a copy of the package.

`EXTENSIONS` maps a kind to its edits; extended_use.py uses all of them, by command line, HTTP and Python.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import dsearch

PACKAGE = Path(dsearch.__file__).parent


@dataclass(frozen=True)
class Edit:
    """Text to insert into a file of the package, before or after a line that is there once.

    Attributes:
        file: path relative to the package; a new file if there is no anchor.
        anchor: the line.
        text: the text.
        before: True to insert before the anchor.
    """

    file: str
    anchor: str
    text: str
    before: bool = False

    def apply(self, package: Path) -> None:
        path = package / self.file
        if not self.anchor:
            assert not path.exists(), path
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        at = [number for number, line in enumerate(lines) if line.strip() == self.anchor]
        assert len(at) == 1, f"{self.file}: {self.anchor!r} stands {len(at)} times"
        where = at[0] if self.before else at[0] + 1
        path.write_text("".join([*lines[:where], self.text, *lines[where:]]))


EXTENSIONS: dict[str, list[Edit]] = {
    "objective": [
        Edit(
            "training/losses/objectives.py",
            "class TargetLoss(NamedTuple):",
            "def toy_loss(log_weights: Tensor, target: Tensor) -> Tensor:\n"
            "    return -(target * log_weights.log_softmax(-1).exp()).sum(-1).mean()\n\n\n",
            before=True,
        ),
        Edit(
            "training/losses/objectives.py",
            '"marginal": TargetLoss("whole", marginal_likelihood),',
            '    "toy-objective": TargetLoss("whole", toy_loss),\n',
        ),
        Edit("jobs.py", "OBJECTIVE_NAMES = (", '    "toy-objective",\n'),
    ],
    "score": [
        Edit(
            "attention/scores.py",
            '"exact_match": exact_match,',
            '    "toy_score": lambda q, k: -dot(q, k),\n',
        ),
        Edit("attention_options.py", '"boxcar",', '    "toy_score",\n'),
    ],
    "index kind": [
        Edit(
            "index/dense/kinds.py",
            '"Flat": DenseKind(lambda n, d: "Flat", "exact; 4 bytes a number"),',
            '    "Toy": DenseKind(lambda n, d: "HNSW8,Flat", "a toy", lambda d: 4 * d, {"ef_search": 64}),\n',
        ),
    ],
    "filter operator": [
        Edit(
            "store/filters.py",
            '"lte": ComparisonOperator(operator.le, "{value} <= {operand}"),',
            '    "starts": ComparisonOperator('
            'str.startswith, "instr({value}, {operand}) = 1", texts_only=True),\n',
        ),
    ],
    "training option": [
        Edit("jobs.py", "class TrainOptions(LearningOptions, total=False):", "    toy_remark: str | None\n"),
        Edit(
            "jobs.py",
            'self_supervised: bool = option(False, "learn from the corpus alone, without judgements")',
            '    toy_remark: str | None = option(None, "a remark to begin with", longest=100)\n',
            before=True,
        ),
        Edit(
            "training/run.py",
            "if job.field is not None:",
            "    run.observer.remark(job.toy_remark or '')\n",
            before=True,
        ),
    ],
    "search option": [
        Edit("search_options.py", "class SearchKeywords(TypedDict, total=False):", "    toy_cap: int\n"),
        Edit(
            "search_options.py",
            'offset: int = option(0, "number of hits to skip", low=0, high=MAX_OFFSET, ranks=False)',
            '    toy_cap: int = option(1000, "largest number of hits", low=1, high=1000)\n',
            before=True,
        ),
        Edit(
            "engine/search/search.py",
            "page = HitPage(chosen.limit, places[0].offset, chosen.score_threshold, chosen.weight_threshold)",
            "    chosen = replace(chosen, limit=min(chosen.limit, chosen.toy_cap))\n",
            before=True,
        ),
    ],
    "route": [
        Edit(
            "service/routes/documents.py",
            "serves(router, CountFacets)(by_the_engine)",
            """

@serves(router, CountToys)
async def count_toys(asked: Asked, call: CountToys) -> Toy:
    count = asked.service.catalogue.call(lambda opened: Toy(opened.describe().documents), call.collection)
    return await asked.service.read(count)
""",
        ),
        Edit(
            "service/routes/documents.py",
            "from dsearch.results import DocumentPage, MetadataResult, Task, WriteResult",
            "from dsearch.operations.models import CountToys\nfrom dsearch.results import Toy\n",
        ),
        Edit(
            "results.py",
            "class PromotionResult:",
            "class Toy:\n    documents: int\n\n\n@dataclass(frozen=True, slots=True)\n",
            before=True,
        ),
        Edit(
            "operations/models.py",
            "from dsearch.operations.declared import Call, call",
            "from dsearch.results import Toy\n",
        ),
        Edit(
            "operations/models.py",
            "Tensors = Mapping[str, Any]",
            '''

@call("GET", "/v1/collections/{collection}/toy")
class CountToys(Call[Toy]):
    """Count the documents."""

    collection: str
''',
        ),
        Edit(
            "client/calls.py",
            "# ---- models",
            """
    @door(CountToys)
    def toys(self, collection: str) -> Any: ...
""",
        ),
        Edit(
            "client/calls.py",
            "from dsearch import operations",
            "from dsearch.operations.models import CountToys\n",
        ),
        Edit(
            "client/local/collections.py",
            "from dsearch.engine import PassageOptions, calls, statistics",
            "from dsearch.operations.models import CountToys\n",
        ),
        Edit(
            "client/local/collections.py",
            "def _arrays_of(head: Head) -> dict[str, Any]:",
            """
@handles(CountToys)
def count_toys(local: LocalEngine, call: CountToys) -> results.Toy:
    return results.Toy(local.engine.collection(call.collection).describe().documents)


""",
            before=True,
        ),
    ],
}
MOST_FILES = {  # that one addition may change
    "objective": 2,
    "score": 2,
    "index kind": 1,
    "filter operator": 1,
    "training option": 2,
    "search option": 3,
    "route": 6,
}


def extended_package(folder: Path) -> Path:
    """Copy the package into `folder` and apply all edits; returns the folder to import it from."""
    shutil.copytree(PACKAGE, folder / "dsearch", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        PACKAGE.parent / "index", folder / "index", ignore=shutil.ignore_patterns("example", "retired")
    )
    for edits in EXTENSIONS.values():
        for edit in edits:
            edit.apply(folder / "dsearch")
    return folder
