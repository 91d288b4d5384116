"""`dsearch config`."""

from __future__ import annotations

import typer

from dsearch.cli import options


def config(json: options.AsJson = False) -> None:
    """List every setting with its value, where that comes from, and what it means.

    A setting is a key of dsearch.toml (or of the file that DSEARCH_CONFIG names) and, in capitals, a variable
    DSEARCH_<KEY>; the variable wins, and an option of the command wins over both.
    """
    from dsearch.cli.session import print_json
    from dsearch.config import settings_in_use

    found = settings_in_use()
    if json:
        print_json(
            [
                {
                    "key": one.key,
                    "value": one.value if isinstance(one.value, int | None) else str(one.value),
                    "source": one.source,
                    "meaning": one.meaning,
                }
                for one in found
            ]
        )
        return
    values = ["unset" if one.value is None else repr(str(one.value)) for one in found]
    widths = [
        max(map(len, column))
        for column in ([one.key for one in found], values, [one.source for one in found])
    ]
    for one, value in zip(found, values, strict=True):
        cells = (one.key, value, one.source)
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        typer.echo(f"{line}  {one.meaning}")
