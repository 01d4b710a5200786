"""The command `eagle3-data`: its commands, and the one place where exceptions become exit codes.

What enters: the arguments of a call. What leaves: an exit code (see `faults`).
It promises to start fast: typer is the only import until a command runs (0.1 s for `--help`; with
rich's help pages 0.24 s).
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eagle3_data import __version__
from eagle3_data.cli import console
from eagle3_data.cli.acceptance import acceptance
from eagle3_data.cli.check import check
from eagle3_data.cli.convert import convert
from eagle3_data.cli.evaluate import evaluate
from eagle3_data.cli.extract import extract
from eagle3_data.cli.faults import VERBOSE, Exit, tell
from eagle3_data.cli.finetune import finetune
from eagle3_data.cli.generate import generate
from eagle3_data.cli.lint import lint
from eagle3_data.cli.probe import probe
from eagle3_data.cli.profiles import profile_check, profile_show, profiles
from eagle3_data.cli.rules import rule, rules
from eagle3_data.cli.shards_io import export, import_
from eagle3_data.cli.verify import verify
from eagle3_data.cli.vocab import vocab


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
app.command()(check)
app.command()(convert)
app.command()(verify)
app.command()(probe)
app.command()(generate)
app.command()(rule)
app.command()(rules)
app.command()(profiles)
app.command()(export)
app.command("import")(import_)
app.command()(extract)
app.command()(finetune)
app.command()(evaluate)
app.command()(lint)
app.command()(acceptance)

profile = typer.Typer(
    help="Look at one profile, or prove it against a tokenizer.", no_args_is_help=True
)
profile.command("check")(profile_check)
profile.command("show")(profile_show)
app.add_typer(profile, name="profile")
app.add_typer(vocab, name="vocab")


def _print_version(value: bool) -> None:
    if value:
        console.result(f"eagle3-data {__version__}")
        raise typer.Exit


@app.callback()
def _door(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    pass


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
        app(prog_name="eagle3-data")
    except OSError as error:  # typer's own words met a stream that takes no more
        console.note(f"error: {error.strerror or error}")
        console.mute()
        raise SystemExit(Exit.FAULT) from None
