"""Options of the commands as annotated types: a word means the same in every command.

What enters: nothing. What leaves: types for the signatures of commands. The help texts are the
documentation: a test asserts that every option stands in the README or in docs/.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from eagle3_data.cli.faults import VERBOSE


class TurnsWanted(StrEnum):
    """Which assistant turns of a dialogue are taken as answers."""

    LAST = "last"
    ALL = "all"


def _remember(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[VERBOSE] = value
    return value


# --- every command ---
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", callback=_remember, help="Say what is in force, show tracebacks."
    ),
]

# --- what is read, and how ---
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES",
        help="Files, folders or globs (.jsonl .json .ndjson, also .gz .zst); - is standard input.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Model family; chosen from the data when left out."),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Tokenizer of the target model: its folder or tokenizer file."
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Jinja chat template, in place of the tokenizer's own."),
]
Turns = Annotated[
    TurnsWanted | None,
    typer.Option(help="Assistant turns of a dialogue that count as answers (last unless set)."),
]
Holdout = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE", help="Evaluation prompts that must not be in the data (repeatable)."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings; else eagle3-data.toml or pyproject.toml, upward."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Threads, processes from 256 MiB of input. One a processor, at most 16, unless set.",
    ),
]

# --- which rules, how severe ---
Select = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CODES", help="Run only these: codes or prefixes, with commas (repeatable)."
    ),
]
Ignore = Annotated[list[str] | None, typer.Option(metavar="CODES", help="Leave these rules out.")]
Error = Annotated[list[str] | None, typer.Option(metavar="CODES", help="Make these rules errors.")]
Warn = Annotated[list[str] | None, typer.Option(metavar="CODES", help="Make these rules warnings.")]
ExitZero = Annotated[
    bool, typer.Option("--exit-zero", help="Exit 0 when rules fired; a fault still exits 2.")
]

# --- a capture that is still running ---
Follow = Annotated[
    bool, typer.Option("--follow", help="Watch a file that still grows; Ctrl-C ends with a report.")
]
StopOn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RULE", help="Stop when a rule fires on too much: 'CAP001>1%' (repeatable)."
    ),
]

# --- what is written ---
Repair = Annotated[
    bool, typer.Option("--repair", help="Mend what has one certain reading; each repair is told.")
]
Quarantine = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Split the lines into DIR/clean.jsonl and DIR/quarantine.jsonl."
    ),
]
Output = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT=PATH",
        help="Write a report too (repeatable); - is stdout.",
    ),
]
Reports = Annotated[
    list[str] | None,
    typer.Option(
        "--output", metavar="FORMAT=PATH", help="Write a report too (repeatable); - is stdout."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs of an earlier run.")]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="FORMAT", help="Format of the report on stdout (text)."),
]
Show = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Examples shown for each rule; counts are exact."),
]
Statistics = Annotated[
    bool, typer.Option("--statistics", help="Print only one line a rule: count, code, name.")
]
