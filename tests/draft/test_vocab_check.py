"""Checking a mapping: every code fires on its fault and on nothing sound."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from drafts import mapping_file
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from eagle3_data.draft.mapping import VocabError, choose
from eagle3_data.draft.mapping_check import checked, examine
from eagle3_data.draft.mapping_files import D2T, SAFETENSORS, T2D, Raw, files, inherited, read
from eagle3_data.draft.tensors import INDEX, TensorError
from eagle3_data.draft.vocab_rules import VOCAB_RULES

COUNTS = np.random.default_rng(0).integers(1, 50, 200).astype(np.int64)
SOUND = choose(COUNTS, 60, np.array([7], dtype=np.int64))


def folder(tmp_path: Path, d2t=SOUND.d2t, t2d=SOUND.t2d) -> Path:
    return mapping_file(tmp_path / "mapping", d2t, t2d)


def swapped() -> np.ndarray:
    targets = SOUND.targets.copy()
    targets[[3, 9]] = targets[[9, 3]]
    return targets - np.arange(len(targets))


def moved(at: int, target: int) -> np.ndarray:
    d2t = SOUND.d2t.copy()
    d2t[at] = target - at
    return d2t


def other_t2d() -> np.ndarray:
    t2d = SOUND.t2d.copy()
    t2d[[SOUND.targets[0], np.argmin(SOUND.t2d)]] = [False, True]
    return t2d


def rebuilt(tmp_path: Path) -> Path:
    """What other data would choose."""
    other = choose(COUNTS[::-1].copy(), 60, SOUND.targets[:1])
    return mapping_file(tmp_path / "drafter", other.d2t, other.t2d)


FIRES: dict[str, Callable[[Path], list[str]]] = {
    "VOC001": lambda p: checked(folder(p, SOUND.d2t.astype(np.int32))).codes,
    "VOC002": lambda p: checked(folder(p, SOUND.targets)).codes,
    "VOC003": lambda p: checked(folder(p, moved(59, 200), None), vocab_size=200).codes,
    "VOC004": lambda p: checked(folder(p, moved(5, int(SOUND.targets[4])), None)).codes,
    "VOC005": lambda p: checked(folder(p, t2d=other_t2d())).codes,
    "VOC006": lambda p: checked(folder(p, swapped())).codes,
    "VOC007": lambda p: checked(folder(p, t2d=None)).codes,
    "VOC008": lambda p: checked(folder(p), vocab_size=256).codes,
    "VOC009": lambda p: (
        checked(folder(p), control={"</think>": int(np.argmin(SOUND.t2d)), "<|im_end|>": 7}).codes
    ),
    "VOC010": lambda p: checked(folder(p), inherit=rebuilt(p)).codes,
}
ALSO = {
    "VOC003": ["VOC007"],  # no t2d: it would contradict as well
    "VOC004": ["VOC006", "VOC007"],
}


def test_every_rule_has_a_fixture_and_its_documentation() -> None:
    assert list(FIRES) == list(VOCAB_RULES) == [f"VOC{i:03d}" for i in range(1, 11)]
    for rule in VOCAB_RULES.values():
        assert "Why it matters:" in rule.docs
        assert "What to do:" in rule.docs


@pytest.mark.parametrize("code", FIRES)
def test_a_fault_is_named_by_its_code_alone(tmp_path, code) -> None:
    assert FIRES[code](tmp_path) == sorted([code, *ALSO.get(code, [])])


def test_a_sound_mapping_passes_every_rule(tmp_path) -> None:
    found = checked(folder(tmp_path), vocab_size=200, control={"</s>": 7}, inherit=folder(tmp_path))
    assert found.codes == []
    assert found.sound
    assert found.report().exit_code == 0
    assert [rule.code for rule in found.ran] == list(VOCAB_RULES)


def test_an_error_is_an_error_in_the_report_too(tmp_path) -> None:
    found = checked(folder(tmp_path, SOUND.targets))
    report = found.report()
    assert (found.sound, report.exit_code) == (False, 1)
    assert report.findings["code"].to_list() == ["VOC002"]


@pytest.mark.parametrize("values", [SOUND.d2t.astype(np.float32), SOUND.d2t[None]], ids=["f", "2d"])
def test_what_is_no_row_of_numbers_is_a_wrong_type_and_not_read_further(tmp_path, values) -> None:
    np.save(tmp_path / D2T, values, allow_pickle=False)
    np.save(tmp_path / T2D, SOUND.t2d, allow_pickle=False)
    assert checked(tmp_path).codes == ["VOC001"]


def test_ids_are_told_from_offsets_without_knowing_the_target(tmp_path) -> None:
    assert checked(folder(tmp_path, SOUND.targets, None)).codes == ["VOC002", "VOC007"]
    assert checked(folder(tmp_path, SOUND.d2t, None)).codes == ["VOC007"]


def test_the_identity_is_no_list_of_ids(tmp_path) -> None:
    zeros = np.zeros(200, dtype=np.int64)
    assert checked(folder(tmp_path, zeros, np.ones(200, dtype=np.bool_))).codes == []
    counted = np.arange(200)
    assert checked(folder(tmp_path, counted, np.ones(200, dtype=np.bool_))).codes == ["VOC002"]


def test_ids_in_the_order_of_their_counts_are_told_from_offsets() -> None:
    order = np.argsort(-COUNTS, kind="stable")[:60]
    t2d = np.zeros(200, dtype=np.bool_)
    t2d[order] = True
    codes = [fault.code for fault in examine(Raw(Path("x"), order, t2d), 200)]
    assert codes == ["VOC002", "VOC006"]
    offsets = order - np.arange(60)
    assert [f.code for f in examine(Raw(Path("x"), offsets, t2d), 200)] == ["VOC006"]


def test_every_form_that_is_written_comes_back(tmp_path) -> None:
    for name, data in files(SOUND, {"profile": "demo"}).items():
        (tmp_path / name).write_bytes(data)
    for place in (tmp_path, tmp_path / SAFETENSORS, tmp_path / D2T, tmp_path / T2D):
        raw = read(place)
        assert raw.d2t.tolist() == SOUND.d2t.tolist()
        assert raw.t2d.tolist() == SOUND.t2d.tolist()
    (tmp_path / SAFETENSORS).unlink()
    assert read(tmp_path).d2t.tolist() == SOUND.d2t.tolist()


def test_numbered_pairs_of_speculators_are_found(tmp_path) -> None:
    np.save(tmp_path / "d2t-60.npy", SOUND.d2t, allow_pickle=False)
    np.save(tmp_path / "t2d-60.npy", SOUND.t2d, allow_pickle=False)
    assert checked(tmp_path).codes == []
    np.save(tmp_path / "d2t-70.npy", SOUND.d2t, allow_pickle=False)
    with pytest.raises(TensorError, match=r"several mappings \(d2t-60.npy, d2t-70.npy\)"):
        checked(tmp_path)


def test_the_mapping_of_a_drafter_is_inherited(tmp_path) -> None:
    head = np.zeros((60, 4), dtype=np.float16)
    save_file(
        {"d2t": SOUND.d2t, "t2d": SOUND.t2d, "lm_head.weight": head},
        tmp_path / "model.safetensors",
    )
    assert inherited(tmp_path, 200).fingerprint == SOUND.fingerprint


def test_a_drafter_of_the_whole_vocabulary_has_the_identity(tmp_path) -> None:
    save_file({"lm_head.weight": np.zeros((200, 4), np.float16)}, tmp_path / "model.safetensors")
    assert inherited(tmp_path, 200).targets.tolist() == list(range(200))
    with pytest.raises(VocabError, match="a head of 200 rows where the target has 300 tokens"):
        inherited(tmp_path, 300)


def test_a_broken_mapping_is_not_inherited(tmp_path) -> None:
    with pytest.raises(VocabError, match=r"not sound \(VOC002: .*see `vocab check"):
        inherited(folder(tmp_path, SOUND.targets), 200)


def pickled(tmp_path: Path) -> Path:
    path = tmp_path / "vocab_mapping.pt"
    path.write_bytes(b"PK\x03\x04")
    return path


def object_array(tmp_path: Path) -> Path:
    np.save(tmp_path / D2T, np.array([{}], dtype=object), allow_pickle=True)
    return tmp_path / D2T


def written(name: str, data: bytes) -> Callable[[Path], Path]:
    def make(tmp_path: Path) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return make


def huge_npy(tmp_path: Path) -> Path:
    """A header that claims 8 TB in a file of 128 bytes."""
    np.save(tmp_path / D2T, np.zeros(1, dtype=np.int64), allow_pickle=False)
    body = (tmp_path / D2T).read_bytes().replace(b"(1,), }", b"(1000000000000,), }")
    (tmp_path / D2T).write_bytes(body)
    return tmp_path / D2T


HOSTILE = b'{"d2t":{"dtype":"I64","shape":[9999999999],"data_offsets":[0,79999999992]}}'


def pipe(name: str) -> Callable[[Path], Path]:
    """A pipe that nobody writes to."""

    def make(tmp_path: Path) -> Path:
        os.mkfifo(tmp_path / name)
        return tmp_path

    return make


HOSTILE_FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "torch file": (pickled, "a torch file is a pickle"),
    "folder of torch files": (lambda p: pickled(p).parent, "a torch file is a pickle"),
    "objects": (object_array, "no plain .npy file"),
    "more than there is": (huge_npy, "no plain .npy file"),
    "empty npy": (written(D2T, b""), "no plain .npy file"),
    "code in the header": (
        written(D2T, b"\x93NUMPY\x01\x00\x10\x00__import__('os')"),
        "no plain .npy file",
    ),
    "text": (written("d2t.txt", b"x"), "no sound safetensors file"),
    "empty": (written("m.safetensors", b""), "no sound safetensors file"),
    "endless header": (written("m.safetensors", b"\xff" * 64), "no sound safetensors file"),
    "null": (written("m.safetensors", b"\x04" + b"\x00" * 7 + b"null"), "no sound safetensors"),
    "beyond the end": (
        written("m.safetensors", len(HOSTILE).to_bytes(8, "little") + HOSTILE),
        "no sound safetensors file",
    ),
    "pipe as tensors": (pipe("model.safetensors"), "holds no .safetensors file"),
    "pipe as npy": (pipe(D2T), "no regular file"),
    "nothing": (lambda p: p / "nothing", "is not there"),
    "no files": (lambda p: p, "holds no .safetensors file"),
    "index to elsewhere": (
        lambda p: written(INDEX, b'{"weight_map": {"a": "../../x.safetensors"}}')(p).parent,
        "no safetensors file of this folder",
    ),
    "index of nothing": (lambda p: written(INDEX, b"[]")(p).parent, "can not be read"),
}


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_hostile_files_give_a_clear_error(tmp_path, name) -> None:
    make, message = HOSTILE_FILES[name]
    place = make(tmp_path)
    with pytest.raises(TensorError, match=message):
        checked(place)


numbers = hnp.arrays(
    st.sampled_from([np.int64, np.int32, np.uint64, np.float32, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=20),
)


@given(st.none() | numbers, st.none() | numbers, st.none() | st.integers(1, 30))
def test_any_arrays_give_faults_and_no_traceback(d2t, t2d, size) -> None:
    faults = examine(Raw(Path("x"), d2t, t2d), size, control={"a": 3}, base=SOUND)
    assert {fault.code for fault in faults} <= set(VOCAB_RULES)
    if d2t is not None and d2t.dtype == np.int64 and d2t.ndim == 1 and not faults:
        raise AssertionError("SOUND has 60 tokens and 200 entries: VOC010 at least")
