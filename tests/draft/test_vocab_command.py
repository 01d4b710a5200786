"""`vocab` and `vocab check` as commands: files, words, exit codes; always the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from drafts import FACTS, mapping_file, row, spans, table, write
from safetensors.numpy import load_file
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.draft.control import control_of, control_tokens, sampled_markers
from eagle3_data.draft.mapping import VocabError
from eagle3_data.profiles.load import fingerprint, load
from eagle3_data.tokens.tokenizer import open_tokenizer

TOKENIZER = Path(__file__).parent.parent.parent / "fixtures" / "tokenizers" / "smollm2-think"
OWN = load("smollm2-think")
THINK = FACTS.model_copy(
    update={
        "profile": OWN.name,
        "profile_hash": fingerprint(OWN),
        "vocab_size": 49_156,
        "tokenizer_hash": open_tokenizer(TOKENIZER).fingerprint,
    }
)


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.stdout, result.stderr


def shards(folder: Path, **more) -> Path:
    parts = spans(("prompt", 3), ("reasoning", 2), ("marker", 1), ("content", 3), ("marker", 1))
    rows = [
        row(
            i,
            prompt=3,
            sampled=7,
            spans=parts,
            input_ids=[5, 6, 7, 20 + i, 21, 90, 40, 41, 42, 2],
            grade="AB"[i % 2],
            file=f"part{i % 2}.jsonl",
        )
        for i in range(10)
    ]
    write(folder, table(rows), **more)
    return folder


def test_build_writes_the_mapping_and_says_what_it_covers(tmp_path) -> None:
    shards(tmp_path / "s", facts=THINK)
    out = tmp_path / "m"
    code, stdout, stderr = run("vocab", tmp_path / "s", "-o", out, "--size", 12)
    assert code == 0, stderr
    found = load_file(out / "vocab_mapping.safetensors")
    # end of turn, then the frequent ids, 20 + i only where 21 made it frequent; `</think>` and the
    # end of turn of the profile are in without a single count
    control = {marker.id for marker in sampled_markers(OWN) if marker.id is not None}
    targets = (found["d2t"] + np.arange(12)).tolist()
    assert set(targets) >= control | {2, 21, 40, 41, 42, 90}
    assert found["t2d"].shape == (49_156,)
    assert np.flatnonzero(found["t2d"]).tolist() == targets
    assert np.load(out / "d2t.npy").tolist() == found["d2t"].tolist()
    assert np.load(out / "t2d.npy").tolist() == found["t2d"].tolist()
    report = json.loads((out / "coverage.json").read_bytes())
    rows = {(g["kind"], g["name"]): (g["tokens"], g["covered"]) for g in report["coverage"]}
    lost = sum(20 + i not in targets for i in range(10))
    assert rows["all", "all"] == (70, 70 - lost)
    assert rows["phase", "thinking"] == (20, 20 - lost)
    assert rows["phase", "answer"] == (30, 30)
    assert rows["phase", "markers"] == (20, 20)
    assert rows["grade", "A"][0] == rows["file", "part0.jsonl"][0] == 35
    assert [step["size"] for step in report["sweep"]] == [12, 8000, 16000, 32000, 49156]
    assert report["sweep"][0]["coverage"] == (70 - lost) / 70
    ElementTree.fromstring((out / "coverage.svg").read_text(encoding="utf-8"))
    assert "a pickle" in (out / "NOTE.md").read_text(encoding="utf-8")
    assert "draft vocabulary of 12 of 49,156 tokens" in stdout
    assert not list(out.glob("*.pt"))
    assert run("vocab", "check", out, "--vocab-size", 49_156)[0] == 0


def test_the_same_shards_give_the_same_bytes(tmp_path) -> None:
    shards(tmp_path / "s", facts=THINK)
    for name in ("one", "two"):
        assert run("vocab", tmp_path / "s", "-o", tmp_path / name, "--size", 20)[0] == 0
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert one == two


def test_an_existing_mapping_is_only_replaced_when_asked(tmp_path) -> None:
    shards(tmp_path / "s", facts=THINK)
    arguments = ("vocab", tmp_path / "s", "-o", tmp_path / "m", "--size", 20)
    assert run(*arguments)[0] == 0
    code, _, stderr = run(*arguments)
    assert (code, "exists" in stderr) == (2, True)
    assert run(*arguments, "--overwrite")[0] == 0


def test_a_kept_mapping_has_its_size_and_a_rebuilt_one_is_refused(tmp_path) -> None:
    shards(tmp_path / "s", facts=THINK)
    kept = np.array([1, 2, 21, 30], dtype=np.int64)
    t2d = np.zeros(49_156, dtype=np.bool_)
    t2d[kept] = True
    draft = mapping_file(tmp_path / "draft", kept - np.arange(4), t2d)
    code, stdout, stderr = run("vocab", tmp_path / "s", "-o", tmp_path / "m", "--inherit", draft)
    assert code == 0, stderr
    assert load_file(tmp_path / "m" / "vocab_mapping.safetensors")["t2d"].nonzero()[0].tolist() == [
        1, 2, 21, 30,
    ]  # fmt: skip
    assert f"kept from {draft}" in stdout
    assert "(VOC009)" in stderr
    code, _, stderr = run("vocab", tmp_path / "s", "--inherit", draft, "--size", 5)
    assert (code, "leave out --size" in stderr) == (2, True)
    assert run("vocab", tmp_path / "s", "-o", tmp_path / "new", "--size", 4)[0] == 0
    code, stdout, _ = run("vocab", "check", tmp_path / "new", "--inherit", draft)
    assert (code, "VOC010 mapping-not-the-drafters (error)" in stdout) == (1, True)


def test_without_a_folder_it_only_shows(tmp_path) -> None:
    shards(tmp_path / "s", facts=THINK)
    before = sorted(tmp_path.iterdir())
    code, stdout, _ = run("vocab", "build", tmp_path / "s", "--json", "--quiet")
    assert (code, sorted(tmp_path.iterdir())) == (0, before)
    assert json.loads(stdout)["size"] == 32_000


def test_filters_hold(tmp_path) -> None:
    shards(tmp_path / "s", facts=THINK)
    _, stdout, _ = run("vocab", tmp_path / "s", "--min-grade", "A", "--json", "-q")
    report = json.loads(stdout)
    assert report["samples"] == 5
    assert report["about"]["filters"] == "grade in ('A',)"
    code, _, stderr = run("vocab", tmp_path / "s", "--split", "nothing")
    assert (code, "no supervised token" in stderr) == (2, True)


def test_the_size_of_the_target_decides_the_mask(tmp_path) -> None:
    shards(tmp_path / "s", facts=THINK)
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 49280}}')
    _, stdout, _ = run("vocab", tmp_path / "s", "--target", tmp_path, "--json", "-q")
    assert json.loads(stdout)["vocab_size"] == 49_280
    code, _, stderr = run("vocab", tmp_path / "s", "--vocab-size", 100)
    assert (code, "smaller than the tokenizer's" in stderr) == (2, True)
    code, _, stderr = run("vocab", tmp_path / "s", "--target", tmp_path, "--vocab-size", 49_281)
    assert (code, "is not what" in stderr) == (2, True)


def test_control_tokens_come_from_the_profile_and_what_it_does_not_state_is_told() -> None:
    found = control_tokens(THINK)
    assert set(found.ids.values()) | set(found.unknown) >= {2}
    tokenizer = open_tokenizer(TOKENIZER)
    with_tokenizer = control_tokens(THINK, tokenizer=tokenizer)
    assert with_tokenizer.unknown == ()
    texts = {marker.text for marker in sampled_markers(OWN)}
    assert {"<think>", "</think>", "<|im_end|>"} <= texts
    assert texts <= set(with_tokenizer.ids)
    assert all(
        tokenizer.token_id(text) == token
        for text, token in with_tokenizer.ids.items()
        if not text.startswith("end of turn")
    )


def test_markers_of_prompts_need_no_place() -> None:
    ids = control_of(load("kimi-k2-thinking")).ids
    assert ids["</think>"] == 163_607
    assert ids["<|tool_call_begin|>"] == 163_597
    assert ids["<|im_end|>"] == 163_586
    assert not {"<|im_user|>", "<|im_system|>", "<|media_begin|>", "[BOS]"} & set(ids)


def test_a_foreign_tokenizer_and_an_unknown_profile_are_refused() -> None:
    with pytest.raises(VocabError, match="is another one"):
        control_tokens(FACTS, tokenizer=open_tokenizer(TOKENIZER))
    with pytest.raises(VocabError, match="pass its file with --profile"):
        control_tokens(FACTS)
    other = control_tokens(FACTS, profile="smollm2-think")
    assert "not word for word" in other.notes[0]


def test_check_prints_every_form(tmp_path) -> None:
    bad = mapping_file(tmp_path / "m", np.arange(3, 60, 2, dtype=np.int64))
    code, stdout, _ = run("vocab", "check", bad)
    assert code == 1
    assert stdout.startswith(f"FAULTS  {bad}: 1 error, 1 warning")
    assert "Next: eagle3-data rule VOC002" in stdout
    assert run("vocab", "check", bad, "--exit-zero")[0] == 0
    code, stdout, _ = run("vocab", "check", bad, "--json")
    assert [f["code"] for f in json.loads(stdout)["findings"]] == ["VOC002", "VOC007"]
    code, stdout, _ = run("vocab", "check", bad, "-o", "github=-", "-o", f"json={tmp_path}/r.json")
    assert (code, stdout.count("::error"), stdout.count("::warning")) == (1, 1, 1)
    assert json.loads((tmp_path / "r.json").read_bytes())["sound"] is False
    assert run("vocab", "check", tmp_path / "nothing")[0] == 2
    code, _, stderr = run("vocab", "check", bad, "--tokenizer", TOKENIZER)
    assert (code, "pass --profile as well" in stderr) == (2, True)


def test_check_knows_the_markers_of_a_profile(tmp_path) -> None:
    mapping = mapping_file(tmp_path / "m", np.zeros(8, np.int64), np.ones(8, np.bool_))
    code, stdout, _ = run("vocab", "check", mapping, "--profile", "kimi-k2-thinking")
    assert (code, "VOC009 control-token-missing (warn)" in stdout) == (0, True)
