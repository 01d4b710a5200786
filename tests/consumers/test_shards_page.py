"""docs/shards.md: its Python runs and gives what it says, its lists hold all that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from eagle3_data import convert
from eagle3_data.tokens.samples import IMPORTED, PromptSource, SpanKind

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "shards.md").read_text(encoding="utf-8")
PIECES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OPTIONAL = ("duckdb", "datasets", "torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds `shards`, converted as the page says."""
    here = tmp_path_factory.mktemp("page")
    capture = ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl"
    tokenizer = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
    convert(capture, here / "shards", tokenizer=tokenizer, split="train=0.8,val=0.2")
    return here


def shown(piece: str) -> list[tuple[str, str]]:
    """Runs `piece`; what each bare expression gives, and what the comment behind it says."""
    lines, names, found = piece.splitlines(), {"__name__": "piece"}, []
    for part in ast.parse(piece).body:
        text = ast.unparse(part)
        if isinstance(part, ast.Expr):
            value = eval(text, names)
            found.append((str(value), lines[part.end_lineno - 1].partition("  # ")[2]))
        else:
            exec(text, names)
    return found


def test_the_page_has_the_pieces_that_are_run() -> None:
    heads = re.findall(r"^## (.*)|```python", PAGE, re.MULTILINE)
    assert len(PIECES) == 9
    assert [head for head in heads if head] == [
        *("eagle3_data", "Are they whole?", "Polars", "pyarrow", "DuckDB", "Hugging Face datasets"),
        *("Shuffled, without torch", "Shuffled, as a torch DataLoader", "Columns"),
    ]
    assert sum(piece.count("# 28\n") for piece in PIECES) == 5  # samples of train
    assert sum(piece.count("# 3978\n") for piece in PIECES) == 3  # their supervised tokens


@pytest.mark.parametrize("piece", PIECES, ids=range(len(PIECES)))
def test_a_piece_of_python_gives_what_it_says(
    piece: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OPTIONAL:
        if re.search(rf"^(from|import) {name}\b", piece, re.MULTILINE):
            pytest.importorskip(name)
    if "datasets" in piece:
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.chdir(folder)
    found = shown(piece)
    assert found
    assert [value for value, _ in found] == [said for _, said in found]


def test_the_numbers_of_the_page_are_those_of_the_shards(folder: Path) -> None:
    from eagle3_data import open_shards

    shards = open_shards(folder / "shards")
    assert shards.manifest.ledger["splits"] == {"train": 28, "val": 11}
    assert (len(shards), shards.manifest.supervised_tokens) == (39, 3978 + 1382)


def test_a_folder_read_as_a_whole_mixes_the_splits(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    mixed = datasets.load_dataset(str(folder / "shards"), split="train", cache_dir=str(tmp_path))
    assert mixed.num_rows == 39
    assert sorted(set(mixed["split"])) == ["train", "val"]


def test_the_bare_folder_fails_in_polars_and_pyarrow_as_the_page_says(folder: Path) -> None:
    with pytest.raises(pl.exceptions.InvalidOperationError, match="different file extensions"):
        pl.scan_parquet(folder / "shards").collect()
    with pytest.raises(pa.ArrowInvalid, match=r"manifest\.json"):
        ds.dataset(folder / "shards", format="parquet")
    with pytest.raises(FileNotFoundError):
        ds.dataset(str(folder / "shards" / "*.parquet"), format="parquet")


def test_polars_wraps_a_sum_of_int32_as_the_page_says() -> None:
    frame = pl.DataFrame({"seq_len": [2**30, 2**30, 5]}, schema={"seq_len": pl.Int32})
    assert frame["seq_len"].sum() == -2147483643
    assert pl.concat([frame, frame])["seq_len"].sum() == 10
    assert frame["seq_len"].cast(pl.Int64).sum() == 2147483653


def test_duckdb_wants_two_names_in_quotes_as_the_page_says(folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    shards = f"from '{folder}/shards/*.parquet'"
    with pytest.raises(duckdb.ParserException):
        duckdb.sql(f"select offset {shards}")
    assert duckdb.sql(f'select min("offset") {shards}').fetchall() == [(0,)]


def table(heading: str) -> dict[str, str]:
    """First cell -> second cell of the table below the line that begins with `heading`."""
    rows = PAGE.split(f"\n{heading}")[1].split("|---", 1)[1].split("\n\n")[0].splitlines()[1:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {first.strip("`"): second for first, second, *_ in cells}


def test_the_kinds_of_spans_and_the_sources_of_prompts_are_complete() -> None:
    assert list(table("Kinds of spans")) == [kind.value for kind in SpanKind]
    assert list(table("Sources of prompts")) == [source.value for source in PromptSource]


def reasons() -> set[tuple[str, str]]:
    """Every (reason, grade) that the code writes: a reason stands right behind its grade."""
    found = set()
    for name in ("decide", "assemble"):
        source = (ROOT / "eagle3_data" / "tokens" / f"{name}.py").read_text(encoding="utf-8")
        for grade, reason in re.findall(r"Grade\.([A-E]), (\"[a-z-]+\"|IMPORTED)", source):
            found.add((IMPORTED if reason == "IMPORTED" else reason.strip('"'), grade))
    return found


def test_the_reasons_of_grades_are_complete() -> None:
    listed = table("Reasons of grades")
    assert len(listed) == 19
    assert listed["edge-unknown"] == "D"
    assert set(listed.items()) == reasons()
