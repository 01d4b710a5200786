"""--output FORMAT=PATH: what is refused before the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_data.cli.faults import UsageFault
from eagle3_data.cli.outputs import Output, parse
from eagle3_data.writing import OutputError

FORMATS = ("json", "sarif", "text")


def test_formats_and_places(tmp_path: Path) -> None:
    texts = [f"json={tmp_path}/a=b.json", "sarif=-"]
    got = parse(texts, FORMATS, overwrite=False, inputs=[])
    assert got == [Output("json", tmp_path / "a=b.json"), Output("sarif", None)]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["json"], "write it as FORMAT=PATH"),
        (["json="], "write it as FORMAT=PATH"),
        (["yaml=x"], "no format 'yaml': choose one of json, sarif, text"),
        (["json=-", "sarif=-"], "two outputs go to standard output"),
        (["json=a.out", "sarif=./a.out"], "two outputs go to a.out"),
    ],
)
def test_what_can_not_work_is_refused(texts: list[str], words: str) -> None:
    with pytest.raises(UsageFault, match=words):
        parse(texts, FORMATS, overwrite=True, inputs=[])


def test_an_input_is_never_an_output(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("{}\n")
    (tmp_path / "same.jsonl").symlink_to(data)
    with pytest.raises(UsageFault, match="is an input of this run"):
        parse([f"json={tmp_path}/same.jsonl"], FORMATS, overwrite=True, inputs=[data])


def test_an_existing_file_needs_overwrite(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    with pytest.raises(OutputError, match="--overwrite"):
        parse([f"json={tmp_path}/a.json"], FORMATS, overwrite=False, inputs=[])
    assert parse([f"json={tmp_path}/a.json"], FORMATS, overwrite=True, inputs=[])
