"""Output formats: pure functions from a `Report` to bytes. Nothing here opens a file.

What enters: a report and the name of a format. What leaves: bytes, UTF-8 where they are text. It
promises that text out of a capture is inert in every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report

FORMATS: Final = {
    "text": "eagle3_data.audit.formats.text:report_text",
    "json": "eagle3_data.audit.formats.data:report_json",
    "jsonl": "eagle3_data.audit.formats.data:findings_jsonl",
    "parquet": "eagle3_data.audit.formats.data:findings_parquet",
    "github": "eagle3_data.audit.formats.github:report_github",
    "html": "eagle3_data.audit.formats.html:report_html",
    "markdown": "eagle3_data.audit.formats.markdown:report_markdown",
    "sarif": "eagle3_data.audit.formats.sarif:report_sarif",
    "junit": "eagle3_data.audit.formats.junit:report_junit",
}
"""Name → where its function is; a format loads when it is asked for."""


def render(report: Report, name: str) -> bytes:
    """The report in one format. Raises KeyError for a name that is not in FORMATS."""
    module, function = FORMATS[name].split(":")
    write: Callable[[Report], str | bytes] = getattr(import_module(module), function)
    made = write(report)
    return made if isinstance(made, bytes) else made.encode()
