"""Help of the commands: what each is for, and an example of each."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

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
        "synthesize": "dsearch synthesize judged -c notes",
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
        "backends": "dsearch backends",
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


class GroupedHelp(TyperGroup):
    """A group of commands whose help lists them by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each purpose."""
        purposes = {name: purpose for purpose, of in EXAMPLES.items() for name in of}
        lists: dict[str, list[tuple[str, str]]] = {purpose: [] for purpose in [*EXAMPLES, _OTHERS]}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                lists[purposes.get(name, _OTHERS)].append((name, command.get_short_help_str(limit=80)))
        for purpose, rows in lists.items():
            if rows:
                with formatter.section(purpose):
                    formatter.write_dl(rows)


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
