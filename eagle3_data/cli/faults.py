"""What ends a command early, and with which exit code.

What enters: an exception that left a command. What leaves: one line on stderr and an exit code.
It promises 0 fine, 1 the data has faults, 2 the call or the program has, 130 interrupted; and no
traceback unless asked for.
"""

from __future__ import annotations

from enum import IntEnum

from eagle3_data.cli import console

VERBOSE = "eagle3_data.verbose"
"""Key of the context's shared `meta` where --verbose leaves its mark for `app.Guarded`."""


class Exit(IntEnum):
    """The exit codes of every command."""

    CLEAN = 0
    FINDINGS = 1
    FAULT = 2
    INTERRUPTED = 130


class UsageFault(ValueError):
    """The call can not work; the message says why and what to do next."""


def explained(error: Exception) -> bool:
    """True when the message was written for the user: our own classes, the system's about files."""
    ours = type(error).__module__.startswith("eagle3_data")
    return isinstance(error, OSError) or (ours and isinstance(error, ValueError))


def tell(error: Exception, *, verbose: bool) -> None:
    """Print `error` as one line with a next step, after the traceback when `verbose`."""
    if verbose:
        import traceback

        console.note(traceback.format_exc().rstrip())
    if isinstance(error, OSError) and not type(error).__module__.startswith("eagle3_data"):
        where = f"{error.filename}: " if error.filename else ""
        console.note(f"error: {where}{error.strerror or error}")
    elif explained(error):
        console.note(f"error: {error}")
    else:
        text = " ".join(str(error).split())[:300]
        step = (
            "please report it"
            if verbose
            else "run again with --verbose for the place, and please report it"
        )
        console.note(f"internal fault: {type(error).__name__}: {text} ({step})")
