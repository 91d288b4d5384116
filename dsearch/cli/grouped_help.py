"""The commands: where each is defined, its purpose, an example, what stands after Ctrl-C; the root.

The root imports the command that is called.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, MutableMapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dsearch

COMMANDS = {
    "demo": "commands.demo:demo",
    "index": "commands.index:index",
    "watch": "commands.watch:watch",
    "search": "commands.search:search",
    "similar": "commands.search:similar",
    "attend": "commands.attend:attend",
    "predict": "commands.attend:predict",
    "show": "commands.collections:show",
    "facets": "commands.collections:facets",
    "update": "commands.collections:update",
    "delete": "commands.collections:delete",
    "serve": "commands.serve:serve",
    "mcp": "commands.serve:mcp",
    "judge": "commands.judge:judge",
    "tune": "commands.train:tune",
    "train": "commands.train:train",
    "evaluate": "commands.evaluate:evaluate",
    "compare": "commands.evaluate:compare",
    "run": "commands.evaluate:run",
    "promote": "commands.models:promote",
    "rollback": "commands.models:rollback",
    "remember": "commands.models:remember",
    "refresh": "commands.models:refresh",
    "collections": "commands.collections:collections",
    "create": "commands.collections:create",
    "drop": "commands.collections:drop",
    "stats": "commands.maintenance:stats",
    "alias": "commands.maintenance:alias",
    "verify": "commands.maintenance:verify",
    "recover": "commands.maintenance:recover",
    "backup": "commands.maintenance:backup",
    "restore": "commands.maintenance:restore",
    "export": "commands.maintenance:export",
    "compact": "commands.maintenance:compact",
    "purge": "commands.maintenance:purge",
    "migrate": "commands.maintenance:migrate",
    "config": "commands.system:config",
    "doctor": "commands.system:doctor",
    "guide": "commands.system:guide",
    "models": "commands.models:models_app",
    "judgements": "commands.judge:judgements",
    "feedback": "commands.feedback:feedback",
    "keys": "commands.system:keys",
    "cluster": "commands.serve:cluster",
}
"""Module of dsearch.cli and name in it, in the order in which a newcomer needs them."""

EXAMPLES: dict[str, dict[str, str]] = {
    "Begin": {
        "demo": "dsearch demo",
        "index": "dsearch index notes -c notes",
        "watch": "dsearch watch notes -c notes",
        "search": 'dsearch search "slow dough" -c notes -k 5',
        "similar": "dsearch similar bread.txt -c notes",
        "show": "dsearch show bread.txt -c notes",
        "facets": "dsearch facets folder -c notes",
        "serve": "dsearch serve --port 8080",
        "mcp": "dsearch mcp",
        "guide": "dsearch guide training",
    },
    "Learn": {
        "judge": 'dsearch judge "slow dough" bread.txt -c notes --grade 3',
        "judgements": "dsearch judgements -c notes",
        "judgements next": "dsearch judgements next -c notes",
        "judgements export": "dsearch judgements export judged.csv -c notes",
        "judgements import": "dsearch judgements import judged.csv -c notes",
        "train": "dsearch train -c notes --data judged.csv",
        "tune": "dsearch tune -c notes --data judged.csv",
        "evaluate": "dsearch evaluate -c notes --data judged.csv",
        "compare": "dsearch compare v0 v1 -c notes --data judged.csv",
        "run": "dsearch run -c notes --queries queries.jsonl --out run.trec",
        "remember": 'dsearch remember "slow dough" bread.txt -c notes',
        "promote": "dsearch promote v1 -c notes",
        "rollback": "dsearch rollback -c notes",
        "models": "dsearch models -c notes",
        "models delete": "dsearch models delete v2 -c notes",
        "feedback": "dsearch feedback stats -c notes",
        "feedback stats": "dsearch feedback stats -c notes",
        "feedback export": "dsearch feedback export -c notes -o feedback.jsonl",
        "feedback clear": "dsearch feedback clear -c notes --older-than 365",
    },
    "Attention": {
        "attend": 'dsearch attend "slow dough" -c notes',
        "predict": 'dsearch predict "slow dough" --field year -c notes',
    },
    "Documents and collections": {
        "update": "dsearch update bread.txt '{\"year\": 2024}' -c notes",
        "delete": "dsearch delete bread.txt -c notes",
        "export": "dsearch export -c notes -o notes.jsonl",
        "collections": "dsearch collections",
        "create": "dsearch create notes",
        "drop": "dsearch drop notes",
        "stats": "dsearch stats -c notes",
        "alias": "dsearch alias current notes",
    },
    "Upkeep": {
        "refresh": "dsearch refresh -c notes",
        "verify": "dsearch verify notes",
        "recover": "dsearch recover notes",
        "backup": "dsearch backup backups/monday -c notes",
        "restore": "dsearch restore backups/monday",
        "compact": "dsearch compact -c notes",
        "purge": "dsearch purge -c notes",
        "migrate": "dsearch migrate -c notes --encoder multilingual-e5-small",
        "cluster": "dsearch cluster status",
        "cluster start": "dsearch cluster start -c notes --shards 4",
        "cluster status": "dsearch cluster status",
        "cluster stop": "dsearch cluster stop",
    },
    "This installation": {
        "config": "dsearch config",
        "doctor": "dsearch doctor",
        "keys": "dsearch keys list",
        "keys create": "dsearch keys create --name laptop --scope read",
        "keys list": "dsearch keys list",
        "keys revoke": "dsearch keys revoke 3f9a1c2b",
        "keys clear": "dsearch keys clear",
    },
}
"""The commands by what they are for, each with an example that its parser accepts."""

_OTHERS = "More"
SENTENCE = 1000  # characters, more than any: a list of commands shows first sentences whole


class LazyCommands(MutableMapping[str, Any]):
    """The commands by name, each imported on first use: a search needs neither evaluation nor a server."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}
        self._names = dict.fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = _command(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._names[name] = None
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class GroupedHelp(TyperGroup):
    """The commands of `COMMANDS`, listed by purpose in the help."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.commands = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each purpose."""
        purposes = {name: purpose for purpose, of in EXAMPLES.items() for name in of}
        lists: dict[str, list[tuple[str, str]]] = {purpose: [] for purpose in [*EXAMPLES, _OTHERS]}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                lists[purposes.get(name, _OTHERS)].append((name, command.get_short_help_str(SENTENCE)))
        for purpose, rows in lists.items():
            if rows:
                with formatter.section(purpose):
                    formatter.write_dl(rows)


class WholeHelp(TyperGroup):
    """A group of commands whose list shows first sentences whole, over as many lines as they need."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        listed = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(SENTENCE))
                    for name, command in listed
                    if command is not None
                ]
            )


def _command(name: str) -> Any:
    """Import a command, or a group of commands, whose help ends with its example."""
    module, attribute = COMMANDS[name].split(":")
    defined: Any = getattr(import_module(f"dsearch.cli.{module}"), attribute)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(defined, typer.Typer):
        app.add_typer(defined, name=name, cls=WholeHelp)
        add_examples(app)
        return typer.main.get_group(app).commands[name]
    app.command(name, context_settings={"help_option_names": ["-h", "--help"]})(defined)
    add_examples(app)
    return typer.main.get_command(app)


def add_examples(app: typer.Typer, path: str = "") -> None:
    """Let the help of each command end with its example."""
    examples = {name: example for of in EXAMPLES.values() for name, example in of.items()}
    for info in app.registered_commands:
        callback: Any = info.callback
        name = f"{path}{info.name or callback.__name__.replace('_', '-')}"
        if name in examples:
            info.epilog = f"\b\nExample:\n  {examples[name]}"
    for group in app.registered_groups:
        if group.typer_instance is not None:
            name = f"{path}{group.name}"
            if name in examples:
                group.epilog = f"\b\nExample:\n  {examples[name]}"
            add_examples(group.typer_instance, f"{name} ")


app = typer.Typer(
    name="dsearch",
    cls=GroupedHelp,
    help="A differentiable search engine: index a corpus, query it over HTTP, fine-tune its retrieval.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(dsearch.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A differentiable search engine: index a corpus, query it over HTTP, fine-tune its retrieval."""
    from dsearch.cli.session import remember_home

    remember_home(None)  # of an earlier command in this process
    go_on_with()


STANDS = {
    "demo": "what was made so far is used again",
    "index": "documents that were written stay",
    "watch": "documents that were written stay",
    "tune": "no version was made",
    "train": "no version was made",
    "refresh": "the index before it answers",
    "migrate": "the old encoder answers until the end, and what was encoded stays",
    "compact": "no document is lost",
    "purge": "no document is lost, and deleted ones may still be in files",
    "backup": "no backup was made",
    "restore": "no collection was made",
    "export": "a file that it was writing is not whole",
    "cluster start": "shards that were split stay",
}
READING = (
    *("search", "similar", "attend", "predict", "show", "facets", "serve", "mcp", "guide", "evaluate"),
    *("compare", "run", "collections", "stats", "verify", "config", "doctor"),
    *("judgements next", "feedback stats"),
)
_CHANGES = "what it changes was changed whole or not at all"

_options: ContextVar[tuple[str, ...]] = ContextVar("options", default=())


def go_on_with(*options: str) -> None:
    """From now on the command that goes on has these options too; none: it is the same command."""
    _options.set(options)


def interruption_line(arguments: Sequence[str]) -> str:
    """The line of a command that was interrupted."""
    again = [*arguments, *(option for option in _options.get() if option not in arguments)]
    pair = " ".join(arguments[:2])
    name = pair if pair in (*STANDS, *READING) else "".join(arguments[:1])
    stands = STANDS.get(name, "nothing was changed" if name in READING else _CHANGES)
    if "--resume" in again:
        stands = f"{stands}, and the run's checkpoints stay"
    return f"dsearch: interrupted; {stands}; to go on, run it again: dsearch {shlex.join(again)}"
