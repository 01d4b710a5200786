"""`lint`: will this drafter load in vLLM, SGLang and llama.cpp, and will it be right?

What enters: the folder of a drafter, and its target where that is at hand. What leaves: an
`Inspection` with findings, the layers each engine reads, one line an engine. It promises to read
config.json, headers and the mapping only, and to run nothing of either folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3_data.draft import config as configs
from eagle3_data.draft.drafter_files import Files, open_drafter
from eagle3_data.draft.engines import (
    ALL,
    LLAMACPP,
    SGLANG,
    Effect,
    Hit,
    Reading,
    lines,
    readings,
    shown,
)
from eagle3_data.draft.findings import Finding, Inspection, rules_of
from eagle3_data.draft.lint_config import config_hits
from eagle3_data.draft.lint_tensors import tensor_hits
from eagle3_data.draft.mapping_check import examine
from eagle3_data.draft.mapping_files import of_tensors
from eagle3_data.draft.vocab_rules import (
    HOLDS_IDS,
    OUT_OF_RANGE,
    REPEATED,
    SIZE_DIFFERS,
    T2D_DIFFERS,
    T2D_MISSING,
    UNSORTED,
    WRONG_TYPE,
)

MENDED = {
    WRONG_TYPE: "writes int64 and bool",
    HOLDS_IDS: "writes offsets",
    T2D_DIFFERS: "makes t2d out of d2t",
    T2D_MISSING: "writes t2d",
}
HARMLESS = (UNSORTED, T2D_MISSING, T2D_DIFFERS, SIZE_DIFFERS)
"""Faults of a mapping that engines do not notice: they read `d2t` alone, in any order."""


def lint(path: str | Path, target: str | Path | None = None) -> Inspection:
    """Judge a drafter. Raises ConfigError, TensorError for files that can not be read."""
    files = open_drafter(path)
    model = None if target is None else configs.read(target)
    trained = trained_on(files)
    layers = None if model is None else model.number("num_hidden_layers")
    kind = None if model is None else str(model.values.get("model_type", ""))
    read = readings(files, layers, kind)
    hits = [
        *tensor_hits(files),
        *config_hits(files, model, read, trained),
        *_mapping(files, model),
    ]
    notes = []
    if model is None:
        notes.append(
            "without --target neither rope, positions and vocabulary nor the range of layer ids are"
            " compared"
        )
    if trained is None:
        notes.append(
            "which layers it was trained on is not written in config.json, and no file can tell:"
            " compare the layers that engines read with the training, or measure with `acceptance`"
        )
    return Inspection(
        Path(path),
        _facts(files),
        tuple(_finding(files, hit) for hit in hits),
        rules_of(("CKP", "VOC")),
        engines=lines(hits, read, trained),
        notes=tuple(notes),
        layers={f"layers {engine} reads": _read(read[engine]) for engine in ALL},
    )


def trained_on(files: Files) -> list[int] | None:
    """Outputs of which layers the training read, where this product wrote it down."""
    found = files.own.get("layers_output_of")
    good = isinstance(found, list) and all(isinstance(one, int) for one in found)
    return list(found) if good and isinstance(found, list) else None


def _mapping(files: Files, model: configs.Config | None) -> list[Hit]:
    if "d2t" not in files.plain and "t2d" not in files.plain:
        return []
    size = (model or files.config).number("vocab_size")
    hits = []
    for fault in examine(of_tensors(files.folder, files.plain), size):
        effects = dict.fromkeys(ALL, Effect.WRONG)
        if fault.code in HARMLESS or fault.detail.startswith("t2d"):
            effects = {}
        elif fault.code == WRONG_TYPE:
            effects = {SGLANG: Effect.UNKNOWN}
            if not _whole_numbers(files):  # else vLLM and llama.cpp widen them
                effects = dict.fromkeys(ALL, Effect.UNKNOWN)
        elif fault.code in (OUT_OF_RANGE, REPEATED):
            effects[LLAMACPP] = Effect.REFUSED  # its converter looks
        change = "mend the mapping" if effects else ""
        mend = MENDED.get(fault.code, "")
        hits.append(Hit(fault.code, fault.detail, effects, change=change, mend=mend))
    return hits


def _whole_numbers(files: Files) -> bool:
    d2t = files.plain.get("d2t")
    return d2t is not None and d2t.dtype in ("I8", "I16", "I32", "I64") and len(d2t.shape) == 1


def _finding(files: Files, hit: Hit) -> Finding:
    in_tensors = hit.code.startswith("VOC") or hit.at in files.plain
    tensor = files.plain.get(hit.at or ("d2t" if hit.code.startswith("VOC") else ""))
    place = tensor.file if tensor is not None and in_tensors else files.config.file
    struck = tuple(
        engine for engine, e in hit.effects.items() if e in (Effect.REFUSED, Effect.WRONG)
    )
    return Finding(hit.code, place, hit.detail, hit.at, hit.mend, struck)


def _facts(files: Files) -> dict[str, Any]:
    layout = "speculators" if files.speculators else "plain"
    return {
        "layout": layout,
        "attention": "latent (MLA)" if files.mla else "grouped",
        "auxiliary states": files.aux or None,
        "draft vocabulary": files.head_rows,
        "target vocabulary": files.config.number("vocab_size"),
    }


def _read(reading: Reading) -> str:
    text = f"outputs of {shown(reading.outputs)}"
    return text if reading.also is None else f"{text}; other versions of {shown(reading.also)}"
