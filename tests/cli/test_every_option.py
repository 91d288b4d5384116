"""Each option of each command reaches what does the work, in this process and through a server.

Everything outside the command line is replaced by a recorder: a command with the option must call something
else than the command without it, and these calls must have the value that was given.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT

import pytest
import typer
from support.cli.recorder import MADE_UP, Recorder, holds
from support.cli.terminal import Terminal

from dsearch.cli.grouped_help import app
from dsearch.declared import options_of
from dsearch.jobs import TrainingJob, TuningJob

COMMANDS = {
    "index": "SOURCE -c papers",
    "watch": "FOLDER -c papers",
    "search": "river -c papers",
    "similar": "d1 -c papers",
    "attend": "river -c papers",
    "predict": "river --field year -c papers",
    "facets": "year -c papers",
    "update": "d1 '{\"n\":1}' -c papers",
    "delete": "d1 -c papers",
    "judge": "river d1 -c papers",
    "tune": "--data judged -c papers",
    "train": "--data judged -c papers",
    "evaluate": "--data judged -c papers",
    "compare": "v0 v1 --data judged -c papers",
    "run": "--queries queries.jsonl --out run.trec -c papers",
    "promote": "v1 -c papers",
    "rollback": "-c papers",
    "remember": "river d1 -c papers",
    "refresh": "-c papers",
    "create": "papers",
    "drop": "papers --yes",
    "alias": "today papers",
    "recover": "papers",
    "backup": "folder -c papers",
    "restore": "folder",
    "export": "-c papers",
    "compact": "-c papers",
    "purge": "-c papers",
    "migrate": "--encoder new -c papers",
    "show": "d1 -c papers",
    "stats": "-c papers",
    "verify": "papers",
    "serve": "",
    "mcp": "",
    "models": "-c papers",
    "models delete": "v1 -c papers",
    "judgements": "-c papers",
    "judgements export": "-c papers",
    "judgements import": "judged.csv -c papers",
    "judgements next": "-c papers",
    "feedback stats": "-c papers",
    "feedback export": "-c papers",
    "feedback clear": "--all -c papers",
    "keys create": "--name web",
    "keys list": "",
    "keys revoke": "3f9a",
    "keys clear": "",
    "cluster start": "-c papers",
    "cluster status": "",
    "cluster stop": "",
}
"""Each command as it is called without the option."""
OTHERWISE = {
    "index --workers": "SOURCE -c papers --ray auto",
    "attend --id": "-c papers",
    "attend --vectors": "-c papers",
    "predict --id": "--field year -c papers",
    "predict --vectors": "--field year -c papers",
    "delete --filter": "-c papers",
    "alias --remove": "today",
    "train --teacher": "--data judged -c papers --objective teacher",
    "train --trusted-keys": "-c papers --from feedback",
    "evaluate --hop-strength": "--data judged -c papers --hops 2",
    "evaluate --fail-if-worse": "--data judged -c papers --baseline before.json",
    "remember --data": "-c papers",
    "remember --split": "-c papers --data judged",
    "feedback clear --key": "-c papers --client web",
    "feedback clear --client": "-c papers --key 3f9a",
    "feedback clear --older-than": "-c papers --key 3f9a",
    "feedback clear --damaged": "-c papers",
    "feedback clear --all": "-c papers",
    "drop --yes": "papers",
}
"""Some options go only with others, or in place of others."""
VALUES: dict[str, tuple[str, object]] = {
    "filter": ('{"year": 1937}', 1937),
    "vector": ("[0.25, 0.75]", 0.25),
    "vectors": ("[[0.25, 0.75]]", 0.25),
    "mode": ("dense", "dense"),
    "device": ("cuda:1", "cuda:1"),
    "backend": ("openvino", "openvino"),
    "grade": ("2", 2.0),
    "host": ("127.0.0.2", "127.0.0.2"),
    "older_than": ("7", None),  # a time, not the number of days
}
"""What is given, and what must arrive; None: only a difference."""
SHOWN = {"--json", "--help", "--heatmap", "--show", "--home", "attend --limit"}
"""Options that say what is printed, and `--home`, which every test of a command gives."""
ELSEWHERE = {
    "serve --ray": "cli/test_service.py",
    "index --keep by server": "cli/test_remote.py: what is deleted",
    "index --yes by server": "cli/test_remote.py: what is deleted",
    "index --workers by server": "goes with --ray, which a server refuses",
    "watch --keep by server": "as index",
    "watch --yes by server": "as index",
}
"""Options whose effect is no argument of a call, and the test that they have."""
BY_SERVER = ("index", "watch", "train", "migrate")
"""Commands that do something else where a server does it; the others are written once, for both."""
DERIVED = {"train": options_of(TrainingJob), "tune": options_of(TuningJob)}


@pytest.fixture(params=["here", "by server"])
def recorder(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Recorder:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    recorder = Recorder(
        Terminal(tmp_path / "home", capsys, monkeypatch), monkeypatch, by_server=request.param == "by server"
    )
    outside = recorder.outside
    outside.asked_for.return_value = False  # torchrun
    outside.run_training.side_effect = _run
    outside.optional.return_value.watch.return_value = [()]
    outside.checked_judgements.return_value.report.counts = {}
    outside.checked_judgements.return_value.qrels = {"q": {"d1": 1.0}}
    outside.checked_judgements.return_value.queries = {"q": "river"}
    outside.own_judgements.return_value.judgements = {"q": {"d1": 1.0}}
    outside.store_documents.return_value = (1, 0, 0)
    outside.write_opinions.return_value.unchanged = 0
    collection = outside.engine.collection.return_value
    collection.name, collection.stale, collection.store.path = "papers", False, tmp_path
    collection.store.rows_of.return_value = {"d1": 1}
    collection.snapshot.generation.number = 1
    collection.snapshot.generation.manifest.digest = "0" * 64
    return recorder


def _run(*arguments: Any, open_run: Any, make_task: Any, **options: Any) -> Any:
    """A training opens its run, and makes its task."""
    open_run({}, False)
    if make_task is not None:
        make_task("options")
    return DEFAULT


def _command(name: str) -> Any:
    command: Any = typer.main.get_command(app)
    for part in name.split():
        command = command.commands[part]
    return command


def _options(name: str) -> Iterator[tuple[str, list[str], object]]:
    """List each option: its flag, its arguments, and the value that must arrive."""
    for parameter in _command(name).params:
        flag = next((flag for flag in parameter.opts if flag.startswith("--")), parameter.opts[0])
        derived = DERIVED.get(name, {})
        if not flag.startswith("-") or not SHOWN.isdisjoint((flag, f"{name} {flag}")):
            continue
        if parameter.name in derived and parameter.name != "seed":
            continue  # TrainingJob(**chosen): all or none
        if parameter.is_flag:
            yield flag, [parameter.secondary_opts[0] if parameter.default else flag], None
            continue
        text, value = VALUES.get(parameter.name) or _value(parameter)
        yield flag, [flag, text], value


def _value(parameter: Any) -> tuple[str, object]:
    kind = str(parameter.type_descriptor.annotation)
    if "int" in kind:
        return "7", 7
    if "float" in kind:
        return "0.375", 0.375
    return f"{MADE_UP}{parameter.name}", f"{MADE_UP}{parameter.name}"


WAYS = [
    *COMMANDS.items(),
    ("export", "-c papers -o out.jsonl"),
    ("export", "-c papers --beir folder"),
    ("attend", "-c papers --id d1"),
    ("attend", "-c papers --vectors '[[0.5]]'"),
    ("predict", "--field year -c papers --id d1"),
    ("predict", "--field year -c papers --vectors '[[0.5]]'"),
    ("delete", "-c papers --filter '{\"n\": 1}'"),
    ("train", "-c papers --from feedback"),
    ("train", "-c papers --field year --objective context"),
    ("remember", "-c papers --data judged"),
    ("evaluate", "--data judged -c papers --baseline before.json"),
    ("alias", "today --remove"),
    ("feedback clear", "-c papers --client web"),
    ("feedback clear", "-c papers --damaged"),
]
"""Each way to call a command: it hands on its options in each of them, or refuses them."""


@pytest.mark.parametrize(
    ("recorder", "name", "way"),
    [
        *(("here", name, way) for name, way in WAYS),
        *(("by server", name, way) for name, way in WAYS if name in BY_SERVER),
    ],
    indirect=["recorder"],
)
def test_each_option_reaches_what_does_the_work(recorder: Recorder, name: str, way: str) -> None:
    lost = []
    command = name.split()
    plainly = recorder.calls(*command, *shlex.split(way))
    for flag, arguments, value in _options(name):
        place = f"{name} {flag}"
        if place in ELSEWHERE or f"{place} {recorder.way}" in ELSEWHERE or flag in way.split():
            continue
        otherwise = OTHERWISE.get(place) if way == COMMANDS[name] else None
        base = [*command, *shlex.split(otherwise or way)]
        without = recorder.calls(*base) if otherwise else plainly
        having = recorder.calls(*base, *arguments)
        refused = flag[2:] in recorder.refusal and ("server" in recorder.refusal or way != COMMANDS[name])
        if refused or (isinstance(value, str) and Path(value).exists()):
            continue  # it does not go with this way, as the command says; or a file that it writes itself
        if having == without or (value is not None and (holds(without, value) or not holds(having, value))):
            lost.append(f"{shlex.join(arguments)}: {recorder.refusal} {having}")
    assert not lost, "\n".join(lost)


READING = {
    "search",
    "similar",
    "attend",
    "predict",
    "facets",
    "evaluate",
    "compare",
    "run",
    "backup",
    "export",
    "show",
    "stats",
    "verify",
    "mcp",
    "models",
    "judgements",
    "judgements export",
    "judgements next",
    "judgements import",
    "judge",
    "cluster start",
}
"""Commands that open the home for reading: they work beside a server; judgements are kept beside it."""


@pytest.mark.parametrize("recorder", ["here"], indirect=True)
def test_commands_that_change_nothing_open_the_home_for_reading(recorder: Recorder) -> None:
    def readonly(name: str, arguments: str) -> list[bool]:
        calls = recorder.calls(*name.split(), *shlex.split(arguments))
        return [dict(options)["readonly"] for called, _, options in calls if called == "opened_engine"]

    modes = {name: readonly(name, arguments) for name, arguments in COMMANDS.items()}
    assert {name for name, opened in modes.items() if True in opened} == READING
    assert not any(False in modes[name] for name in READING)
    assert readonly("alias", "") == [True]
    assert readonly("mcp", "--write") == [False]


def test_no_command_is_forgotten() -> None:
    def names(group: Any, path: str = "") -> Iterator[str]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from names(command, f"{path}{name} ")
            if not hasattr(command, "commands") or command.invoke_without_command:
                yield f"{path}{name}"

    alone = {"demo", "collections", "config", "doctor", "guide"}  # of this installation
    assert {*COMMANDS} | alone == {*names(typer.main.get_command(app))}


@pytest.mark.parametrize(
    ("recorder", "command", "said"),
    [
        ("here", "index SOURCE -c papers --second-stage --ray auto", "whose workers give no token states"),
        ("by server", "index SOURCE -c papers --second-stage", "it keeps tokens only of collections that"),
        (
            "by server",
            "index SOURCE -c papers --ray auto",
            "it encodes the documents itself: leave out --ray",
        ),
        ("by server", "index -c papers", "it indexes what commands send it: name a file or a folder"),
        (
            "by server",
            "migrate --encoder new -c papers --language german",
            "it keeps the language",
        ),
        ("by server", "restore folder", "no request may name a folder of its machine"),
    ],
    indirect=["recorder"],
)
def test_what_cannot_be_done_as_it_was_asked_is_refused_and_not_begun(
    recorder: Recorder, command: str, said: str
) -> None:
    calls = recorder.calls(*shlex.split(command))
    assert said in recorder.refusal
    asked = {name for name, *_ in calls if name.startswith("client.")}
    assert asked.isdisjoint({"client.upsert", "client.migrate", "client.create_collection"})
    assert not any("ingest" in name or "encode_on_cluster" in name for name, *_ in calls)


def test_each_command_works_in_the_home_that_it_was_given(recorder: Recorder, tmp_path: Path) -> None:
    """In each part of it: the variable names another one, as do the settings of a folder."""
    given, other = str(tmp_path / "given"), str(tmp_path / "home")
    wrong, looked_at = [], 0
    for name, arguments in COMMANDS.items():
        if not any("--home" in parameter.opts for parameter in _command(name).params):
            continue
        calls = recorder.calls(*name.split(), *shlex.split(arguments), "--home", given)
        homes = {str(of[0]) for called, of, _ in calls if called == "opened_engine"}
        looked_at += bool(homes)
        if homes - {given} or holds(calls, other):
            wrong.append(f"{name}: {homes} {calls}")
    assert not wrong, "\n".join(wrong)
    assert looked_at > 30
