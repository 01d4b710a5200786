"""The report as one HTML page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3_data.audit.formats.text import report_text
from eagle3_data.audit.inert import inert_html

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report

EXAMPLES = 5
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>eagle3-data: {title}</title>
<style>body {{ margin: 2rem; }} pre {{ font: 14px/1.5 ui-monospace, monospace; }}</style>
</head>
<body>
{body}
</body>
</html>
"""


def report_html(report: Report) -> str:
    """A whole page; EXAMPLES examples a rule."""
    title = ", ".join(facts.path for facts in report.inputs)
    return PAGE.format(title=inert_html(title, 120), body=report_block(report, show=EXAMPLES))


def report_block(report: Report, *, show: int = 0) -> str:
    """The text report as one `<pre>` element, for a page or a notebook."""
    lines = report_text(report, show=show).split("\n")
    return '<pre class="eagle3-data">' + "\n".join(inert_html(line) for line in lines) + "</pre>"
