"""`lint --fix`: what is certain is mended in a copy, every other byte stays, nothing in place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafters import (
    CONFIG,
    DRAFT,
    IDS,
    MAPPING,
    VOCAB,
    H,
    array,
    drafter,
    layers0,
    target,
    weights,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.draft.config import ConfigError
from eagle3_data.draft.lint import lint
from eagle3_data.draft.mend import mend
from eagle3_data.draft.tensors import TensorError
from eagle3_data.writing import OutputError

FULL = {
    "lm_head.weight": array(VOCAB, H),
    "d2t": np.zeros(VOCAB, np.int64),
    "t2d": np.ones(VOCAB, np.bool_),
}
OTHER = {
    IDS: [3, 16, 28],
    "eagle_config": {IDS: [3, 16, 28]},
    "eagle3_data": {"layers_output_of": [2, 15, 27]},
}
"""Ids that are not the default."""
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # what is wrong with config.json, with the tensors, how the folder is made
    "ids at one place": (OTHER, {}, {"drop": ("eagle_config",)}),
    "ids nested only": (OTHER, {}, {"drop": (IDS,)}),
    "ids conflict": ({IDS: [2, 15, 26]}, {}, {}),
    "ids not trained": ({IDS: [3, 16, 28], "eagle_config": {IDS: [3, 16, 28]}}, {}, {}),
    "ids missing": ({}, {}, {"drop": (IDS, "eagle_config")}),
    "flag missing": ({}, {"input_norm.weight": array(3 * H)}, {}),
    "flag without tensor": ({"norm_before_fc": True}, {}, {}),
    "bias flag": ({"attention_bias": True}, {}, {}),
    "tied": ({"tie_word_embeddings": True}, {}, {}),
    "size": ({"draft_vocab_size": 64}, {}, {}),
    "no size": ({}, {}, {"drop": ("draft_vocab_size",)}),
    "layers": ({"num_hidden_layers": 2}, {}, {}),
    "names": ({}, {}, {"rename": layers0}),
    "leading model": ({}, {}, {"rename": lambda name: f"model.{name}"}),
    "ids in d2t": ({}, {"d2t": MAPPING.targets}, {}),
    "narrow d2t": ({}, {"d2t": MAPPING.d2t.astype(np.int32)}, {}),
    "t2d as numbers": ({}, {"t2d": MAPPING.t2d.astype(np.uint8)}, {}),
    "no t2d": ({}, {"t2d": None}, {}),
    "other t2d": ({}, {"t2d": np.roll(MAPPING.t2d, 1)}, {}),
    "full head": ({"draft_vocab_size": VOCAB}, FULL, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mended_copy_is_sound_and_the_original_untouched(tmp_path, name) -> None:
    config, tensors, more = CASES[name]
    source = drafter(tmp_path / "d", config, tensors, **more)
    (source / "tokenizer.json").write_text("{}")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    model = target(tmp_path / "t")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    codes = {code for code in lint(source, model).codes if code not in ("CKP007", "CKP023")}
    assert codes
    told = mend(source, tmp_path / "out", model)
    assert told
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    found = lint(tmp_path / "out", model)
    assert set(found.codes) <= {"CKP007", "CKP023"}, [(f.code, f.detail) for f in found.findings]
    assert found.engines[0].right == "yes"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    made = load_file(tmp_path / "out" / "model.safetensors")
    for tensor, values in (weights() | tensors).items():
        if tensor not in ("d2t", "t2d"):
            assert np.array_equal(made[tensor], values)
    if name != "full head":
        assert made["d2t"].tolist() == MAPPING.d2t.tolist()
        assert made["t2d"].tolist() == MAPPING.t2d.tolist()
    else:
        assert not {"d2t", "t2d"} & set(made)


def test_a_sound_drafter_is_copied_byte_for_byte(tmp_path) -> None:
    source = drafter(tmp_path / "d")
    assert mend(source, tmp_path / "out") == []
    one, two = (tmp_path / name / "model.safetensors" for name in ("d", "out"))
    assert one.read_bytes() == two.read_bytes()
    assert json.loads((tmp_path / "out" / "config.json").read_bytes()) == CONFIG


def test_tensors_of_types_that_numpy_lacks_keep_their_bytes(tmp_path) -> None:
    source = drafter(tmp_path / "d", None, {"d2t": MAPPING.targets})
    path = source / "model.safetensors"
    body = path.read_bytes().replace(b'"F16"', b'"BF16"')
    header = int.from_bytes(body[:8], "little") + body.count(b'"BF16"')
    path.write_bytes(header.to_bytes(8, "little") + body[8:])
    assert "VOC002" in lint(source).codes
    mend(source, tmp_path / "out")
    found = lint(tmp_path / "out")
    assert "VOC002" not in found.codes
    old, new = path.read_bytes(), (tmp_path / "out" / "model.safetensors").read_bytes()
    for values in weights().values():
        assert values.tobytes() in old
        assert values.tobytes() in new


def test_a_checkpoint_in_several_files_stays_in_several_files(tmp_path) -> None:
    source = drafter(tmp_path / "d", None, {"d2t": MAPPING.targets, "t2d": None})
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for part, inside in parts.items():
        save_file({name: tensors[name] for name in inside}, source / part)
    index = {"weight_map": {name: part for part, inside in parts.items() for name in inside}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    mend(source, tmp_path / "out", target(tmp_path / "t"))
    made = {part: load_file(tmp_path / "out" / part) for part in parts}
    assert set(made["a.safetensors"]) == set(names[:5])
    assert set(made["b.safetensors"]) == {*names[5:], "t2d"}
    told = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_bytes())
    assert told["weight_map"] == index["weight_map"] | {"t2d": "b.safetensors"}
    assert lint(tmp_path / "out", tmp_path / "t").codes == ["CKP007"]


def test_what_has_no_certain_reading_is_left(tmp_path) -> None:
    twice = MAPPING.d2t.copy()
    twice[5] = twice[4] - 1
    source = drafter(tmp_path / "d", None, {"d2t": twice, "norm.weight": None})
    model = target(tmp_path / "t")
    assert mend(source, tmp_path / "out", model) == []
    assert lint(tmp_path / "out", model).codes == lint(source, model).codes


def test_an_existing_folder_and_the_drafter_itself_are_refused(tmp_path) -> None:
    source = drafter(tmp_path / "d")
    for out in (source, tmp_path):
        with pytest.raises(OutputError, match="name a new folder"):
            mend(source, out)


def test_a_failure_leaves_nothing(tmp_path, monkeypatch) -> None:
    from eagle3_data.draft import mend as module

    source = drafter(tmp_path / "d", None, {"d2t": MAPPING.targets})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_blocks", full)
    with pytest.raises(OSError, match="No space"):
        mend(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_says_one_line_an_engine(tmp_path) -> None:
    source, model = drafter(tmp_path / "d"), target(tmp_path / "t")
    code, stdout, _ = run("lint", source, "--target", model)
    assert code == 0
    for start in (
        "vLLM        yes      yes",
        "SGLang      yes      no",
        "llama.cpp   yes      yes",
    ):
        assert f"\n{start}" in stdout
    assert "CKP007 engines-read-other-layers (warn)" in stdout
    assert run("lint", source, "--target", model, "--engine", "sglang")[0] == 1
    assert run("lint", source, "--target", model, "--engine", "vllm")[0] == 0


def test_the_command_ends_in_the_exit_codes_of_the_others(tmp_path) -> None:
    source, model = drafter(tmp_path / "d", {"draft_vocab_size": 64}), target(tmp_path / "t")
    code, stdout, _ = run("lint", source, "--target", model)
    assert (code, "Next: eagle3-data rule CKP013" in stdout) == (1, True)
    assert run("lint", source, "--exit-zero")[0] == 0
    assert run("lint", source, "--ignore", "CKP013,VOC")[0] == 0
    assert run("lint", tmp_path / "nothing")[0] == 2
    code, stdout, _ = run("lint", source, "--json")
    told = json.loads(stdout)
    assert [f["code"] for f in told["findings"]] == ["CKP013", "CKP007"][::-1]
    assert [line["engine"] for line in told["engines"]] == ["vLLM", "SGLang", "llama.cpp"]
    code, stdout, _ = run("lint", source, "-o", "sarif=-")
    assert json.loads(stdout)["version"] == "2.1.0"


def test_the_command_fixes_into_a_new_folder(tmp_path) -> None:
    source = drafter(tmp_path / "d", {"draft_vocab_size": 64})
    model, out = target(tmp_path / "t"), tmp_path / "out"
    code, _, stderr = run("lint", source, "--target", model, "--fix", out, "--engine", "vllm")
    assert code == 0, stderr
    assert f"fix: draft_vocab_size: 64 → {DRAFT}" in stderr
    assert run("lint", source, "--fix", out)[0] == 2


def test_a_config_that_is_no_file_or_no_object_is_refused(tmp_path) -> None:
    source = drafter(tmp_path / "d")
    config = source / "config.json"
    for body, message in ((b"[]", "no JSON object"), (b"{", "no JSON"), (b"{}", "no hidden_size")):
        config.write_bytes(body)
        with pytest.raises(ConfigError, match=message):
            lint(source)
    config.unlink()
    with pytest.raises(ConfigError, match="can not be read"):
        lint(source)
    os.mkfifo(config)
    with pytest.raises(ConfigError, match="no regular file"):
        lint(source)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats(allow_nan=False) | st.text("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*CONFIG, "rope_parameters", "rope_scaling"]), json_values))
def test_any_config_gives_findings_or_a_clear_error(tmp_path_factory, changed) -> None:
    folder: Path = tmp_path_factory.mktemp("any")
    source, model = drafter(folder / "d", changed), target(folder / "t")
    try:
        found = lint(source, model)
        found.report()
        json.dumps(found.to_dict())
        mend(source, folder / "out", model)
    except (ConfigError, TensorError) as error:
        assert str(error)
