"""The command `eagle3-data`: its commands, and the one place where exceptions become exit codes.

What enters: the arguments of a call. What leaves: an exit code (see `faults`).
It promises to start fast: typer and the module of the command are the only imports until it runs
(0.1 s for `--help`; with rich's help pages 0.24 s).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eagle3_data import __version__
from eagle3_data.cli import console
from eagle3_data.cli.faults import VERBOSE, Exit, tell

COMMANDS = {
    "check": "check:check",
    "convert": "convert:convert",
    "verify": "verify:verify",
    "probe": "probe:probe",
    "generate": "generate:generate",
    "rule": "rules:rule",
    "rules": "rules:rules",
    "profiles": "profiles:profiles",
    "export": "shards_io:export",
    "import": "shards_io:import_",
    "extract": "extract:extract",
    "finetune": "finetune:finetune",
    "evaluate": "evaluate:evaluate",
    "lint": "lint:lint",
    "acceptance": "acceptance:acceptance",
    "profile": "profiles:profile",
    "vocab": "vocab:vocab",
}
"""Name → module of this package and what it holds: a function, or a group of commands. In the order
of `--help`. A call of one command reads that module alone: all of them cost 0.1 s.
"""


class Guarded(TyperGroup):
    """A group whose commands end in an exit code, never in a traceback."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except Exception as error:
            if hasattr(error, "exit_code") or isinstance(error, typer.Abort):
                raise  # typer's own: usage errors and exits
            tell(error, verbose=bool(ctx.meta.get(VERBOSE)))
            raise typer.Exit(Exit.FAULT) from None


def _print_version(value: bool) -> None:
    if value:
        console.result(f"eagle3-data {__version__}")
        raise typer.Exit


def _door(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    pass


def made(names: Collection[str] = COMMANDS) -> typer.Typer:
    """The application with these commands."""
    app = typer.Typer(
        name="eagle3-data",
        cls=Guarded,
        help="Audit captured LLM responses, and build the data sets that train EAGLE-3 drafters.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_door)
    for name in names:
        module, _, thing = COMMANDS[name].partition(":")
        found = getattr(import_module(f"eagle3_data.cli.{module}"), thing)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def __getattr__(name: str) -> Any:
    """`app`: the application with all commands."""
    if name != "app":
        raise AttributeError(name)
    globals()["app"] = found = made()
    return found


def main() -> None:
    """Entry point of the console script."""
    console.tolerant()
    if console.closed():
        console.note("error: standard output is closed: send it to a file, or to /dev/null")
        raise SystemExit(Exit.FAULT)
    if "" in sys.argv[1:]:
        # `--quarantine "$UNSET"` would mean the working folder, `--tokenizer ""` none at all
        console.note("error: an argument is empty; is a variable unset? Fill it, or leave it out")
        raise SystemExit(Exit.FAULT)
    # so that the spooled copy of standard input is removed when the process is asked to end
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        first = sys.argv[1] if len(sys.argv) > 1 else ""
        made([first] if first in COMMANDS else COMMANDS)(prog_name="eagle3-data")
    except KeyboardInterrupt:  # while modules are still read
        raise SystemExit(Exit.INTERRUPTED) from None
    except OSError as error:  # typer's own words met a stream that takes no more
        console.note(f"error: {error.strerror or error}")
        console.mute()
        raise SystemExit(Exit.FAULT) from None
