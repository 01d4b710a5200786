"""The report as JUnit XML: one test case a rule, so that a CI shows which checks ran, not only
which failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from eagle3_data.audit.formats.text import amount
from eagle3_data.audit.inert import inert

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report


def report_junit(report: Report) -> bytes:
    """UTF-8 XML. Error rules fail, warnings pass with a word in system-out, rules not run are
    skipped, faults are errors; notes stand in the system-out of the suite.
    """
    fired = {row["code"]: row for row in report.rules.iter_rows(named=True)}
    suite = ET.Element("testsuite", name="eagle3-data")
    failures = 0
    ran = {rule.code: rule.name for rule in report.rules_run}
    ran |= {code: row["name"] for code, row in fired.items() if code not in ran}
    broken = {fault.code: fault for fault in report.faults}
    for code, name in sorted(ran.items()):
        case = _case(suite, code, name)
        row = fired.get(code)
        if code in broken:
            ET.SubElement(case, "error", message=inert(broken[code].error, 300))
        if row is None:
            continue
        place = report.place(row["file_no"], row["line"])
        text = f"{amount(row)}; first at {place}"
        if row["severity"] == "error":
            failures += 1
            ET.SubElement(case, "failure", message=text, type=name)
        else:
            ET.SubElement(case, "system-out").text = f"warning: {text}"
    for rule in report.rules_not_run:
        if rule.code not in ran:
            ET.SubElement(_case(suite, rule.code, rule.name), "skipped", message=inert(rule.reason))
    totals = {
        "tests": str(len(suite)),
        "failures": str(failures),
        "errors": str(len(broken.keys() & ran.keys())),
        "skipped": str(len(suite) - len(ran)),
        "time": f"{report.seconds:.3f}",
    }
    suite.attrib.update(totals)
    if report.notes:
        told = "\n".join(f"note: {inert(note)}" for note in report.notes)
        ET.SubElement(suite, "system-out").text = told
    root = ET.Element("testsuites", {"name": "eagle3-data", **totals})
    root.append(suite)
    ET.indent(root)
    made: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return made + b"\n"


def _case(suite: ET.Element, code: str, name: str) -> ET.Element:
    return ET.SubElement(
        suite, "testcase", classname=f"eagle3-data.{code[:3]}", name=f"{code} {name}"
    )
