"""Verifying samples: a code for each broken one that the manifest vouches for, and its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import CAPTURE, FACTS, rewrite, row, table, write
from roads import REFERENCE, facts, tables

from eagle3_data import convert
from eagle3_data.shards.schema import arrow_schema
from eagle3_data.shards.verify import verify

Row = dict[str, Any]
SPAN_GAP = [{"kind": "prompt", "start": 0, "end": 3}, {"kind": "content", "start": 4, "end": 7}]
SPAN_SHORT = [{"kind": "prompt", "start": 0, "end": 3}, {"kind": "content", "start": 3, "end": 6}]
SPAN_LONG = [
    {"kind": "prompt", "start": 0, "end": 3},
    {"kind": "content", "start": 3, "end": 2**31 - 1},
]
SPAN_KIND = [{"kind": "prompt", "start": 0, "end": 3}, {"kind": "poetry", "start": 3, "end": 7}]
SPAN_BACK = [
    {"kind": "prompt", "start": 0, "end": 9},
    {"kind": "content", "start": 9, "end": 3},
    {"kind": "content", "start": 3, "end": 7},
]


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("SHD012", {"grade": "Z"}),
        ("SHD012", {"sample_id": "x"}),
        ("SHD012", {"line": 0}),
        ("SHD012", {"prompt_source": "guessed"}),
        ("SHD012", {"sample_id": "0" * 32}),
        ("SHD012", {"line_hash": "0" * 32}),
        ("SHD012", {"line_hash": "0"}),
        ("SHD012", {"choice": 1}),
        ("SHD012", {"turn": None}),
        ("SHD013", {"loss_mask": [0, 0, 0, 1, 1, 1]}),
        ("SHD013", {"seq_len": 8}),
        ("SHD013", {"input_ids": [10, 11, 12, 13, 2]}),
        ("SHD013", {"seq_len": 2**31 - 1, "spans": SPAN_LONG}),
        ("SHD014", {"loss_mask": [0, 0, 0, 1, 2, 1, 1]}),
        ("SHD015", {"input_ids": [10, 11, 12, 13, 100, 15, 2]}),
        ("SHD015", {"input_ids": [10, -1, 12, 13, 14, 15, 2]}),
        ("SHD016", {"spans": []}),
        ("SHD016", {"spans": SPAN_GAP}),
        ("SHD016", {"spans": SPAN_SHORT}),
        ("SHD016", {"spans": SPAN_LONG}),
        ("SHD016", {"spans": SPAN_KIND}),
        ("SHD016", {"spans": SPAN_BACK}),
        ("SHD017", {"loss_mask": [0, 0, 1, 1, 1, 1, 1]}),
        ("SHD017", {"loss_mask": [0, 0, 0, 1, 0, 1, 1]}),
        ("SHD018", {"prompt_len": 2}),
        ("SHD018", {"supervised_tokens": 3}),
        ("SHD018", {"completion_tokens": 5}),
        ("SHD018", {"completion_tokens": 2}),
        ("SHD018", {"completion_tokens": 3, "truncated": True}),
        ("SHD018", {"completion_tokens": 5, "grade": "B"}),
        ("SHD018", {"completion_tokens": 5, "grade": "C"}),
        ("SHD018", {"completion_tokens": None, "grade": "B"}),
        ("SHD018", {"prompt_tokens": 4}),
        ("SHD019", {"input_ids": [10, 11, 12, 13, 14, 15, 16]}),
        ("SHD019", {"loss_mask": [0, 0, 0, 1, 1, 1, 0]}),
    ],
    ids=str,
)
def test_a_broken_sample_is_named_with_its_row(tmp_path, code, changed) -> None:
    write(tmp_path, table([row(0), row(1), row(2)]))
    rewrite(tmp_path, "part-00000.parquet", table([row(0), row(1, **changed), row(2)]))
    found = verify(tmp_path)
    frame = found.frame().filter(code=code)
    assert frame.height == 1, found.findings
    assert found.report().exit_code == 1
    if code != "SHD012" or found.findings[0].row is not None:
        record = changed.get("sample_id", row(1)["sample_id"])
        assert frame.select("file_no", "line", "record_id").row(0) == (0, 2, record)
        assert set(found.frame()["line"]) == {2}
        assert found.report().ledger.kept == 2


def test_the_contract_is_validated_on_values_not_on_a_lazy_frame(tmp_path) -> None:
    from making import polars_of

    from eagle3_data.shards.contract import broken, contract

    frame = polars_of(table([row(0), row(1, grade="Z")]))
    assert broken(frame, contract()) == [("grade", "isin(['A', 'B', 'C', 'D', 'E'])", 1, "Z")]
    with pytest.raises(TypeError, match="collect first"):
        broken(frame.lazy(), contract())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"completion_tokens": 4, "prompt_tokens": 3},
        {"completion_tokens": 3},  # the server does not count its stop token
        {"completion_tokens": 4, "grade": "B", "prompt_source": "template", "prompt_tokens": 9},
        {"completion_tokens": 9, "truncated": True},
        {"completion_tokens": 9, "grade": "E"},
        {"completion_tokens": None, "grade": "D"},
    ],
    ids=str,
)
def test_counts_of_the_server_that_fit_the_grade(tmp_path, changed) -> None:
    write(tmp_path, table([row(0, **changed)]))
    assert verify(tmp_path).codes == []


@pytest.mark.parametrize(
    "changed",
    [
        {"finish_reason": "length"},
        {"finish_reason": None},
        {"truncated": True},
        {"stop_reason": "END"},
        {"stop_reason": "16"},  # a stop id of the request, the last one
    ],
    ids=str,
)
def test_an_end_of_turn_is_only_asked_for_where_the_model_stopped(tmp_path, changed) -> None:
    open_end = {"input_ids": [10, 11, 12, 13, 14, 15, 16]}
    write(tmp_path, table([row(0, **open_end, **changed), row(1, stop_reason="2")]))
    assert verify(tmp_path).codes == []


def test_a_stop_id_that_is_not_the_last_one_is_no_end(tmp_path) -> None:
    write(tmp_path, table([row(0, input_ids=[10, 11, 12, 13, 14, 15, 16], stop_reason="15")]))
    assert verify(tmp_path).codes == ["SHD019"]


def test_without_end_of_turn_ids_no_end_is_asked_for(tmp_path) -> None:
    facts = FACTS.model_copy(update={"end_of_turn": ()})
    write(tmp_path, table([row(0, input_ids=[10, 11, 12, 13, 14, 15, 16])]), facts=facts)
    assert verify(tmp_path).codes == []


def swap(one: Row) -> Row:
    return {"reasoning": one["content"], "content": one["reasoning"]}


def take(one: Row) -> Row:
    return {"reasoning": one["reasoning"] + one["content"][:9], "content": one["content"][9:]}


def thought_and_answer(one: Row) -> bool:
    return bool(one["reasoning"] and one["content"] and "</think>" not in one["content"])


@pytest.mark.parametrize(
    ("edit", "detail"),
    [
        (swap, "from character 0 (whitespace aside): "),
        (take, "the thought, from character "),
    ],
)
def test_a_text_that_stands_in_the_other_field(tmp_path, edit, detail) -> None:
    rows = [one for made in tables(CAPTURE) for one in made.to_pylist()][:40]
    write(tmp_path, table(rows), facts=facts())
    assert verify(tmp_path, deep=True, tokenizer=REFERENCE).codes == []
    at = next(i for i, one in enumerate(rows) if thought_and_answer(one))
    rows[at] |= edit(rows[at])
    write(tmp_path / "edited", table(rows), facts=facts())
    (found,) = verify(tmp_path / "edited", deep=True, tokenizer=REFERENCE).findings
    assert (found.code, found.row["record_id"]) == ("SHD022", rows[at]["sample_id"])
    assert found.detail.startswith(detail)


CLOSE, END = 49153, 2
Sampled = tuple[str | int, ...]
SAMPLED: Sampled = ("I think so.\n", CLOSE, "\n\nHere is more.", END)
AGAIN: Sampled = ("I think so.", CLOSE, " Or not.", CLOSE, " Here is more.", END)
NEVER: Sampled = ("I think so. Here is more.", END)
WHOLE = "I think so.\n\n\nHere is more."


def captured(path: Path, sampled: Sampled, message: Row, end: str = "stop") -> Path:
    """A capture of one record with the ids of server and prompt: grade A."""
    prompt = [1, 4093, 198, 97, 2, 198, 1, 520, 9531, 198, 49152, 198]
    ids: list[int] = []
    for part in sampled:
        ids += [part] if isinstance(part, int) else REFERENCE.encode([part])[0].tolist()
    choice = {"index": 0, "message": message, "finish_reason": end, "token_ids": ids}
    response = {
        "object": "chat.completion",
        "model": "smollm2-think",
        "prompt_token_ids": prompt,
        "choices": [choice],
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)},
    }
    request = {"model": "smollm2-think", "messages": [{"role": "user", "content": "q"}]}
    path.write_text(json.dumps({"request": request, "response": response}) + "\n")
    return path


@pytest.mark.parametrize(
    ("sampled", "message", "end"),
    [
        (SAMPLED, {"content": WHOLE}, "stop"),
        (SAMPLED, {"content": WHOLE, "reasoning": ""}, "stop"),
        (SAMPLED, {"content": "I think so.\n</think>\n\nHere is more."}, "stop"),
        (SAMPLED, {"content": None, "reasoning": WHOLE}, "stop"),
        (SAMPLED, {"content": "\n", "reasoning": WHOLE}, "stop"),
        (SAMPLED[:1], {"content": "I think so.\n"}, "length"),
        (SAMPLED[:1], {"content": None, "reasoning": "I think so.\n"}, "length"),
        (SAMPLED[2:], {"content": "\n\nHere is more."}, "stop"),
        (AGAIN, {"content": " Or not. Here is more.", "reasoning": "I think so."}, "stop"),
        (AGAIN, {"content": " Here is more.", "reasoning": "I think so. Or not."}, "stop"),
        (NEVER, {"content": " Here is more.", "reasoning": "I think so."}, "stop"),
    ],
    ids=str,
)
def test_what_servers_write_verifies_also_where_its_rules_were_ignored(
    tmp_path, sampled, message, end
) -> None:
    path = captured(tmp_path / "raw.jsonl", sampled, message, end)
    options: Row = {"profile": "smollm2-think", "tokenizer": REFERENCE}
    _, manifest = convert(path, tmp_path / "s", ignore=["CAP", "WRP"], **options)
    assert manifest is not None and manifest.rows == 1
    found = verify(tmp_path / "s", deep=True, tokenizer=REFERENCE)
    assert found.findings == []
    assert (found.rows()["grade"].to_list(), found.texts_compared) == (["A"], True)


def test_a_shifted_thought_is_found_where_rules_were_ignored(tmp_path) -> None:
    message = {"content": " so.\n\n\nHere is more.", "reasoning": "I think"}
    path = captured(tmp_path / "raw.jsonl", SAMPLED, message)
    options: Row = {"profile": "smollm2-think", "tokenizer": REFERENCE}
    convert(path, tmp_path / "s", ignore=["CAP", "WRP"], **options)
    (found,) = verify(tmp_path / "s", deep=True, tokenizer=REFERENCE).findings
    assert found.code == "SHD022"
    assert found.detail.endswith("ids 'Ithinkso.', text 'Ithink'")


ints = st.integers(-(2**31), 2**31 - 1)
spans = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["prompt", "content", "x"]), "start": ints, "end": ints}
    ),
    max_size=4,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "input_ids": st.lists(ints, max_size=9),
                "loss_mask": st.lists(st.integers(0, 255), max_size=9),
                "seq_len": ints,
                "prompt_len": ints,
                "supervised_tokens": ints,
                "spans": spans,
            }
        ),
        max_size=5,
    )
)
def test_the_invariants_hold_for_any_values(changes) -> None:
    from eagle3_data.shards.invariants import broken_rows

    rows = [row(0), *(row(i, **change) for i, change in enumerate(changes, 1)), row(99)]
    flags = broken_rows(table(rows), FACTS)
    for i, one in enumerate(rows):
        ids, mask, length = one["input_ids"], one["loss_mask"], one["seq_len"]
        expected = {
            "SHD013": not len(ids) == len(mask) == length,
            "SHD014": any(m > 1 for m in mask),
            "SHD015": any(not 0 <= t < 100 for t in ids),
            "SHD019": not (ids and ids[-1] == 2 and mask and mask[-1]),
        }
        assert {code: bool(flags[code][i]) for code in expected} == expected
        walked = 0
        for span in one["spans"]:
            ok = span["start"] == walked < span["end"] and span["kind"] != "x"
            walked = span["end"] if ok else -1
        assert bool(flags["SHD016"][i]) == (walked != length or not one["spans"])
    assert arrow_schema().names == table(rows).schema.names
