"""Export: every target's files, what they leave out, and what is never overwritten."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from making import FACTS, SMALL, contents, many, row, table, write

from eagle3_data.shards.dialogue import Gap
from eagle3_data.shards.export import export
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import ShardError
from eagle3_data.shards.targets import FORMATS, NOTE, Target
from eagle3_data.writing import OutputError

ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Add"}, {"type": "text", "text": "2+3"}]},
    {"role": "assistant", "content": None, "reasoning": "use it", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2 }'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "5"},
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
FULL = row(
    0,
    messages=orjson.dumps(ASKED).decode(),
    tools=orjson.dumps(TOOLS).decode(),
    template_kwargs='{"enable_thinking": true}',
    reasoning="The tool said 5.",
    content="5\n",
)
CALLING = row(
    1,
    prompt_text="Add 1 and 1",
    content=None,
    finish_reason="tool_calls",
    tool_calls='[{"id": null, "name": "add", "arguments": {"a": 1}}]',
)
TOLD = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Add\n2+3"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "use it",
        "tool_calls": ASKED[2]["tool_calls"],
    },
    {"role": "tool", "content": "5", "tool_call_id": "c1"},
    {"role": "assistant", "content": "5\n", "reasoning_content": "The tool said 5."},
]
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}


def lines(path: Path) -> list[dict]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def exported(tmp_path: Path, target: str, *rows: dict, **more) -> Path:
    write(tmp_path / "shards", table(rows))
    export(tmp_path / "shards", target, tmp_path / "out", **more)
    return tmp_path / "out"


def test_messages_keep_thought_tools_and_template_variables(tmp_path) -> None:
    out = exported(tmp_path, "messages", FULL, CALLING)
    assert lines(out / "messages.jsonl") == [
        {
            "id": FULL["sample_id"],
            "messages": TOLD,
            "tools": TOOLS,
            "chat_template_kwargs": {"enable_thinking": True},
        },
        {
            "id": CALLING["sample_id"],
            "messages": [
                {"role": "user", "content": "Add 1 and 1"},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
            ],
        },
    ]


def test_specforge_gets_ids_as_they_are_and_conversations(tmp_path) -> None:
    out = exported(tmp_path, "specforge", FULL, CALLING)
    assert lines(out / "tokenised.jsonl") == [
        {"input_ids": FULL["input_ids"], "loss_mask": FULL["loss_mask"]},
        {"input_ids": CALLING["input_ids"], "loss_mask": CALLING["loss_mask"]},
    ]
    first, second = lines(out / "conversations.jsonl")
    assert first == {"id": FULL["sample_id"], "conversations": TOLD, "tools": TOOLS}
    assert list(second) == ["id", "conversations"]


def test_openai_gets_no_thought_and_trains_the_last_answer_only(tmp_path) -> None:
    out = exported(tmp_path, "openai", FULL, CALLING)
    first, second = lines(out / "messages.jsonl")
    assert [m.get("weight") for m in first["messages"]] == [None, None, 0, None, None]
    assert all("reasoning_content" not in m for m in first["messages"])
    assert first["messages"][-1] == {"role": "assistant", "content": "5\n"}
    assert second["messages"][-1]["tool_calls"] == [{"id": "call_0", **CALL}]


@pytest.mark.parametrize(
    ("changed", "gap"),
    [
        ({"content": None}, Gap.NO_TEXT),
        ({"messages": None}, Gap.NO_REQUEST),
        ({"messages": "["}, Gap.DAMAGED),
        ({"messages": '[{"role": 1}]'}, Gap.DAMAGED),
        ({"messages": '["user"]'}, Gap.DAMAGED),
        ({"messages": "{}"}, Gap.DAMAGED),
        ({"messages": '[{"role": "user", "content": 7}]'}, Gap.DAMAGED),
        ({"messages": '[{"role": "user", "content": [{"type": "image_url"}]}]'}, Gap.NOT_TEXT),
        ({"tool_calls": '[{"name": 3}]'}, Gap.DAMAGED),
        ({"tools": "no"}, Gap.DAMAGED),
        ({"template_kwargs": "[]"}, Gap.DAMAGED),
        # the last id is no end of turn: cut, whatever the server says
        ({"input_ids": [10] * 7, "finish_reason": "length"}, Gap.NO_END),
        ({"input_ids": [10] * 7, "stop_reason": "###"}, Gap.NO_END),
        ({"truncated": True, "finish_reason": "length"}, Gap.NO_END),
    ],
)
def test_what_a_text_format_would_tell_wrongly_is_left_out_and_counted(
    tmp_path, changed, gap
) -> None:
    asked = {"messages": '[{"role": "user", "content": "x"}]'}
    write(tmp_path / "shards", table([FULL, row(2, **(asked | changed))]))
    made = export(tmp_path / "shards", "messages", tmp_path / "out")
    assert made.left_out == {"messages.jsonl": {gap.value: 1}}
    assert (made.samples, made.written) == (2, {"messages.jsonl": 1})
    assert (made.samples_written, made.tokens_written, made.supervised_tokens_written) == (1, 7, 4)
    assert f"`messages.jsonl`: 1 sample: {gap.value}" in (tmp_path / "out" / NOTE).read_text()


def test_a_thought_alone_is_nothing_for_openai(tmp_path) -> None:
    only = row(3, prompt_text="x", content="", reasoning="so far")
    write(tmp_path / "shards", table([only]))
    made = export(tmp_path / "shards", "openai", tmp_path / "out")
    assert made.left_out == {"messages.jsonl": {Gap.THOUGHT_ONLY.value: 1}}
    assert (tmp_path / "out" / "messages.jsonl").read_bytes() == b""
    export(tmp_path / "shards", "messages", tmp_path / "messages")
    (line,) = lines(tmp_path / "messages" / "messages.jsonl")
    assert line["messages"][-1] == {
        "role": "assistant", "content": "", "reasoning_content": "so far"
    }  # fmt: skip


def test_a_tail_cut_of_a_finished_answer_has_its_whole_text(tmp_path) -> None:
    out = exported(
        tmp_path, "messages", row(4, prompt_text="x", truncated=True, input_ids=[10] * 7)
    )
    assert [line["messages"][-1]["content"] for line in lines(out / "messages.jsonl")] == ["text 4"]


def test_speculators_gets_the_folder_that_datasets_saves(tmp_path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = many(60)
    write(tmp_path / "shards", rows)
    made = export(tmp_path / "shards", Target.SPECULATORS, tmp_path / "out")
    loaded = datasets.Dataset.from_file(str(tmp_path / "out" / "data-00000-of-00001.arrow"))
    wanted = rows.select(["input_ids", "loss_mask", "seq_len"])
    assert loaded.to_list() == wanted.to_pylist()
    assert loaded.features["input_ids"].feature.dtype == "int64"
    assert loaded.features["loss_mask"].feature.dtype == "int64"
    info = datasets.DatasetInfo.from_directory(str(tmp_path / "out"))
    assert info.features == loaded.features
    state = orjson.loads((tmp_path / "out" / "state.json").read_bytes())
    assert state["_data_files"] == [{"filename": "data-00000-of-00001.arrow"}]
    assert state["_format_type"] == "torch"  # its trainer compares rows as tensors
    total, sampled = (sum(rows[name].to_pylist()) for name in ("seq_len", "supervised_tokens"))
    assert (made.samples, made.tokens, made.supervised_tokens) == (60, total, sampled)


def test_token_counts_are_exact_and_only_written_when_asked(tmp_path) -> None:
    write(tmp_path / "shards", table([row(0), row(1), row(70)]), facts=FACTS)
    given: list[dict[int, int]] = []

    def counted(frequencies) -> bytes:
        given.append(dict(frequencies))
        return b"file"

    export(tmp_path / "shards", "speculators", tmp_path / "out", token_freq=counted)
    # sampled: positions 3 to 6 of each, the last one is the end of turn
    assert given == [{2: 3, 13: 1, 14: 2, 15: 2, 16: 1, 83: 1, 84: 1, 85: 1}]
    assert (tmp_path / "out" / "token_freq.pt").read_bytes() == b"file"
    # counts of other data must not stay beside new data
    export(tmp_path / "shards", "speculators", tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "token_freq.pt").exists()
    with pytest.raises(ShardError, match="speculators only"):
        export(tmp_path / "shards", "openai", tmp_path / "other", token_freq=counted)


def test_filters_of_the_shards_hold(tmp_path) -> None:
    write(tmp_path / "shards", table([row(0), row(1, grade="D"), row(2, split="val")]))
    narrowed = open_shards(tmp_path / "shards").where(min_grade="B", split="train")
    assert repr(narrowed).endswith("; narrowed by grade, split>")
    made = export(narrowed, "specforge", tmp_path / "out")
    assert (made.samples, made.grades) == (1, {"A": 1})
    assert (made.samples_held, made.narrowed_away) == (3, 2)
    assert made.splits_held == {"train": 2, "val": 1}
    told = (tmp_path / "out" / NOTE).read_text().splitlines()
    assert told[2] == "- written 1 of 3 samples, tokens 7, supervised 4"
    assert told[3] == "- read 1 of 3 samples (grade A 1), tokens 7, supervised 4"
    place = told.index("- narrowed away 2 of 3 samples")
    assert told[place + 1 : place + 3] == [
        "- filter: grade in ('A', 'B')",
        "- filter: split is train",
    ]


def test_filters_that_leave_nothing_still_tell_what_there_is(tmp_path) -> None:
    write(tmp_path / "shards", table([row(0), row(1)]))
    made = export(
        open_shards(tmp_path / "shards").where(max_length=1), "messages", tmp_path / "out"
    )
    told = made.to_dict()
    assert (told["samples"], told["samples_held"], told["narrowed_away"]) == (0, 2, 2)
    assert "- written 0 of 2 samples, tokens 0" in (tmp_path / "out" / NOTE).read_text()


WHOLE = "`--data hf:/absolute/path/of/the/shards`"


@pytest.mark.parametrize(
    ("rows", "wanted", "told"),
    [
        ([row(0), row(1)], {}, f" It reads the shards themselves too: {WHOLE}.\n"),
        (
            [row(0), row(1, sampled=9)],
            {"max_length": 7},
            f" It reads the shards themselves too ({WHOLE}), but all of them: also the 1 sample"
            " that the filters took away here.\n",
        ),
        (
            [row(0), row(1), row(2, split="val")],
            {"split": "train"},
            f"\n\n**Do not name the folder of shards in its place**: {WHOLE} reads all of it and"
            " trains on all of its splits (2 train and 1 val samples), also on what is held back."
            " Export the split to train on: `export DIR --to speculators --split train -o OUT`.\n",
        ),
        (
            [row(0, split="a"), row(2, split="val")],
            {},
            f"\n\n**Do not name the folder of shards in its place**: {WHOLE} reads all of it and"
            " trains on all of its splits (1 a and 1 val samples), also on what is held back."
            " Export the split to train on: `export DIR --to speculators --split NAME -o OUT`.\n",
        ),
    ],
)
def test_nobody_is_sent_to_shards_that_hold_more_without_a_word(
    tmp_path, rows, wanted, told
) -> None:
    write(tmp_path / "shards", table(rows))
    export(open_shards(tmp_path / "shards").where(**wanted), "speculators", tmp_path / "out")
    note = (tmp_path / "out" / NOTE).read_text()
    assert note.endswith(f"`prepare-data` is not needed.{told}")


@pytest.mark.parametrize(
    ("splits", "told"),
    [
        ({"train": 2}, None),
        ({}, None),
        ({"train": 2, "val": 1}, "2 train and 1 val samples are"),
        ({"val": 1, "train": 2, "test": 1}, "2 train, 1 test and 1 val samples are"),
        ({"a\nb": 2, "val": 1}, r"2 'a\nb' and 1 val samples are"),
        ({f"s{n}": 1 for n in range(8)}, "1 s0, 1 s1, 1 s2, 1 s3, 1 s4 and 3 (3 more splits) sam"),
    ],
)
def test_splits_in_one_file_are_told_by_name_and_count(tmp_path, splits, told) -> None:
    names = [name for name, count in splits.items() for _ in range(count)]
    write(tmp_path / "shards", table([row(n, split=name) for n, name in enumerate(names)]))
    made = export(tmp_path / "shards", "speculators", tmp_path / "out")
    note = (tmp_path / "out" / NOTE).read_text()
    assert dict(made.splits) == splits
    assert (made.mixed or "").startswith(told or "")
    assert ("in one file" in note) == (made.mixed is not None) == (told is not None)


def test_splits_of_samples_that_were_left_out_are_in_no_file(tmp_path) -> None:
    asked = {"messages": '[{"role": "user", "content": "x"}]'}
    val = row(2, split="val", **asked, content=None)
    write(tmp_path / "shards", table([row(1, **asked), val]))
    made = export(tmp_path / "shards", "messages", tmp_path / "out")
    assert (made.splits, made.mixed) == ({"train": 1}, None)


@pytest.mark.parametrize("target", list(Target))
def test_an_export_is_the_same_bytes_again_with_a_note_beside(tmp_path, target) -> None:
    write(tmp_path / "shards", many(60), layout=SMALL)
    for name in ("one", "two"):
        export(tmp_path / "shards", target, tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert sorted(contents(tmp_path / "one")) == sorted([*FORMATS[target].files, NOTE])
    told = (tmp_path / "one" / NOTE).read_text()
    assert all(f"- {text}\n" in told for text in FORMATS[target].lost)
    assert FORMATS[target].mask in told
    assert str(tmp_path) not in told


def test_nothing_is_replaced_unless_asked(tmp_path) -> None:
    write(tmp_path / "shards", many(3))
    export(tmp_path / "shards", "openai", tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(OutputError, match="--overwrite"):
        export(tmp_path / "shards", "openai", tmp_path / "out")
    with pytest.raises(OutputError, match="holds other files"):
        export(tmp_path / "shards", "specforge", tmp_path / "out", overwrite=True)
    with pytest.raises(OutputError, match="the shards themselves"):
        export(tmp_path / "shards", "openai", tmp_path / "shards", overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        export(tmp_path / "shards", "openai", tmp_path / "file", overwrite=True)
    assert contents(tmp_path / "out") == before
    export(tmp_path / "shards", "openai", tmp_path / "out", overwrite=True)
    assert contents(tmp_path / "out") == before


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch) -> None:
    from eagle3_data.writing import Draft

    write(tmp_path / "shards", many(60))
    with pytest.raises(ShardError, match="no target 'gguf'"):
        export(tmp_path / "shards", "gguf", tmp_path / "out")
    written = Draft.write

    def full(self, data) -> None:
        if self.size + len(data) > 1000:
            raise OSError(28, "No space left on device")
        written(self, data)

    monkeypatch.setattr(Draft, "write", full)
    for target in Target:
        with pytest.raises(OSError, match="No space left"):
            export(tmp_path / "shards", target, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_the_arrow_file_is_read_by_pyarrow_alone(tmp_path) -> None:
    rows = many(20)
    write(tmp_path / "shards", rows)
    export(tmp_path / "shards", "speculators", tmp_path / "out")
    with pa.ipc.open_stream(tmp_path / "out" / "data-00000-of-00001.arrow") as stream:
        found = stream.read_all()
    assert found["input_ids"].to_pylist() == rows["input_ids"].to_pylist()
    assert found.schema.field("seq_len").type == pa.int64()
