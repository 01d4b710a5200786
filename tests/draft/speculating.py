"""An engine that speculates, played: it serves known texts and counts what its drafter would do.

It reads the drafter's folder as vLLM reads one (layer ids are what enters a layer, no d2t is the
identity, norm flags and rope out of config.json) and counts with a loop of its own: draft, accept
the prefix that matches, jump. So a fault planted in the files acts as it does in an engine.
"""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tiny import said

from eagle3_data.draft.checkpoint import IDS, Checkpoint, export, load
from eagle3_data.draft.forward import Forward
from eagle3_data.draft.forward import load as load_target
from eagle3_data.draft.mapping import Mapping
from eagle3_data.draft.model import Drafter
from eagle3_data.draft.target import Target, open_target, shape_for

DRAFTS, VOCAB, DEPTH = 3, 100, 6
LAYERS = [1, 2, 4]
THETA = 30.0


@dataclass
class World:
    """A target, its texts (prompt, answer), and a drafter that learned them by heart."""

    folder: Path
    forward: Forward
    target: Target
    texts: list[tuple[list[int], list[int]]]

    @property
    def drafter(self) -> Path:
        return self.folder / "drafter"


def world(folder: Path) -> World:
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=DEPTH, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, initializer_range=0.3, bos_token_id=0,
        eos_token_id=2, max_position_embeddings=256, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder / "target")
    forward = load_target(str(folder / "target"), dtype="fp32", device="cpu")
    random = np.random.default_rng(1)
    texts = []
    for _ in range(16):
        prompt = random.integers(3, VOCAB, random.integers(2, 9)).tolist()
        texts.append((prompt, said(forward, prompt, 30)[len(prompt) :]))
    made = World(folder, forward, open_target(folder / "target"), texts)
    _learn(made)
    return made


def states_of(forward: Forward, ids: list[int], layers: list[int]) -> torch.Tensor:
    """Outputs of layers side by side, -1 the embedding."""
    alone = forward.alone(np.array(ids, dtype=np.int32))
    outs = [alone.embedding if k < 0 else alone.outs[k] for k in layers]
    return torch.cat(outs, -1).bfloat16()


def _learn(made: World) -> None:
    """A drafter by plain gradient descent over the texts, all at once."""
    seen = sorted({token for _, answer in made.texts for token in answer})
    mapping = Mapping(np.array(seen[2:], dtype=np.int64), VOCAB)  # two stay outside
    drafter = Drafter(shape_for(made.target, mapping.size, len(LAYERS)), made.target.embedding)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                wide = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(wide / parameter.shape[1] ** 0.5)
    aux, tokens, positions, bounds, goals, start = [], [], [], [], [], 0
    to_draft = torch.full((VOCAB,), -100)
    to_draft[torch.from_numpy(mapping.targets)] = torch.arange(mapping.size)
    for prompt, answer in made.texts:
        ids = torch.tensor([*prompt, *answer])
        at = torch.arange(len(ids) - 2)
        ahead = (at + 1 + torch.arange(DRAFTS + 1)[:, None]).clamp(max=len(ids) - 1)
        aux.append(states_of(made.forward, ids.tolist(), LAYERS)[: len(at)])
        tokens.append(ids[ahead][:-1])
        wanted = to_draft[ids[ahead][1:]]
        inside = at + 2 + torch.arange(DRAFTS)[:, None]
        wanted[(inside < len(prompt)) | (inside >= len(ids))] = -100
        goals.append(wanted)
        positions.append(at)
        bounds.append((start, start + len(at)))
        start += len(at)
    batch = (torch.cat(aux), torch.cat(tokens, 1), torch.cat(positions), bounds)
    wanted = torch.cat(goals, 1)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=5e-3)
    for _ in range(60):
        loss = sum(
            torch.nn.functional.cross_entropy(drafter.lm_head(state), goal)
            for state, goal in zip(drafter.unroll(*batch), wanted, strict=True)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    facts = {"layers_output_of": LAYERS}
    export(Checkpoint(drafter, mapping, facts=facts), made.drafter, made.target, dtype="fp32")


def planted(made: World, folder: Path, config: dict[str, Any], tensors: Any = None) -> Path:
    """A copy of the drafter with other values in config.json and other tensors."""
    shutil.copytree(made.drafter, folder)
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    if tensors is not None:
        weights = tensors(load_file(folder / "model.safetensors"))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Counter:
    """Counts as an engine that serves this folder."""

    def __init__(self, made: World, folder: Path) -> None:
        self.world = made
        values = json.loads((folder / "config.json").read_text())
        self.layers = [k - 1 for k in values[IDS]]
        found = load_file(folder / "model.safetensors")
        size = len(found["lm_head.weight"])
        offsets = found["d2t"] if "d2t" in found else torch.zeros(size, dtype=torch.long)
        self.targets = (offsets + torch.arange(size)).tolist()
        mapping = Mapping(np.arange(size), VOCAB) if "d2t" not in found else None
        self.checkpoint = load(folder, made.target, mapping)

    def count(self, prompt: list[int], answer: list[int]) -> tuple[int, list[int]]:
        """(steps, accepted drafts at each place) of one answer."""
        ids = [*prompt, *answer]
        rows = len(ids) - 2
        ahead = [[min(i + 1 + k, len(ids) - 1) for i in range(rows)] for k in range(DRAFTS)]
        wide = torch.tensor(ids)
        with torch.no_grad():
            drafts = [
                self.checkpoint.drafter.lm_head(state).argmax(-1).tolist()
                for state in self.checkpoint.drafter.unroll(
                    states_of(self.world.forward, ids, self.layers)[:rows],
                    torch.stack([wide[line] for line in ahead]),
                    torch.arange(rows),
                    [(0, rows)],
                )
            ]
        steps, places = 0, [0] * DRAFTS
        at = len(prompt)  # the last token that is known, first that of the prefill
        while at < len(ids) - 1:
            steps += 1
            accepted = 0
            while (
                accepted < DRAFTS
                and at + 1 + accepted < len(ids)
                and self.targets[drafts[accepted][at - 1]] == ids[at + 1 + accepted]
            ):
                places[accepted] += 1
                accepted += 1
            at += accepted + 1
        return steps, places


class Engine:
    """The server. `faults`: off, dies, busy, no_ids, others (tokens that others made)."""

    def __init__(self, made: World, folder: Path, kind: str = "vllm", **faults: Any) -> None:
        self.world, self.kind, self.faults = made, kind, faults
        self.counter = None if faults.get("dies") or faults.get("off") else Counter(made, folder)
        self.steps, self.places, self.made = [70, 30], [[50, 40, 10], [20, 10, 0]], 500
        self.asked: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        handler = type("Handler", (Handler,), {"engine": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def metrics(self) -> str:
        if self.kind == "sglang":
            return "sglang:spec_accept_length 3.0\n"
        name = "vllm" if self.kind == "vllm" else "llamacpp"
        if self.faults.get("off") or (self.kind == "llamacpp" and self.faults.get("no_metrics")):
            return f"{name}:generation_tokens_total 5\n"
        lines = [f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {self.made}']
        for engine, (steps, places) in enumerate(zip(self.steps, self.places, strict=True)):
            label = f'engine="{engine}",model_name="a}}b"'
            head = f"{name}:spec_decode_num_"
            lines += [
                f"# TYPE {head}drafts counter",
                f"{head}drafts_total{{{label}}} {float(steps)}",
                f"{head}drafts_created{{{label}}} 1.7e9",
                f"{head}draft_tokens_total{{{label}}} {3.0 * steps}",
                f"{head}accepted_tokens_total{{{label}}} {float(sum(places))}",
                f"{head}accepted_tokens_created{{{label}}} 1.7e9",
            ]
            for at, value in enumerate(places):
                more = f'{label},position="{at}"'
                lines.append(f"{head}accepted_tokens_per_pos_total{{{more}}} {float(value)}")
                lines.append(f"{head}accepted_tokens_per_pos_created{{{more}}} 1.7e9")
        return "\n".join(lines) + "\n"

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.asked.append(body)
            number = len(self.asked)
            if self.faults.get("dies"):
                return 500, {"error": {"message": "EngineCore encountered an issue"}}
            if self.faults.get("dies_at") == number:
                return 500, {"error": {"message": "EngineDeadError"}}
            if self.faults.get("busy") and number == 2:
                return 429, {"error": {"message": "later"}}
            prompt, answer = self.world.texts[int(body["messages"][0]["content"].split()[-1])]
            answer = answer[: body["max_tokens"]]
            steps, places = 0, [0] * DRAFTS
            if self.counter is not None:
                steps, places = self.counter.count(prompt, answer)
            engine = number % 2
            self.steps[engine] += steps
            self.places[engine] = [a + b for a, b in zip(self.places[engine], places, strict=True)]
            self.made += len(answer) + self.faults.get("others", 0)
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": "x"},
            "finish_reason": "length",
        }
        told: dict[str, Any] = {
            "object": "chat.completion", "model": "m", "choices": [choice], "created": 1,
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(answer)},
        }  # fmt: skip
        if self.faults.get("no_ids"):
            return 200, told
        if self.kind == "llamacpp":
            told["__verbose"] = {"tokens": answer, "prompt": " ".join(map(str, prompt))}
            told["timings"] = {"predicted_n": len(answer), "draft_n_accepted": sum(places)}
            return 200, told
        told["prompt_token_ids"], choice["token_ids"] = prompt, answer
        if self.kind == "sglang" and body.get("return_meta_info"):
            exactly = [a - b for a, b in zip([steps, *places], [*places, 0], strict=True)]
            choice["meta_info"] = {
                "spec_verify_ct": steps,
                "spec_num_correct_drafts": sum(places),
                "spec_correct_drafts_histogram": exactly,
            }
        return 200, told


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def do_GET(self) -> None:
        owner = {"llamacpp": "llamacpp"}.get(self.engine.kind, self.engine.kind)
        pages: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "m", "owned_by": owner}]},
            "/version": {"version": "0.32.0"},
            "/health": {},
            "/server_info": {"version": "0.5", "internal_states": [{"avg_spec_accept_length": 2}]},
        }
        if self.path == "/metrics" and self.engine.faults.pop("first_metrics_fails", False):
            self._send(500, b"")
        elif self.path == "/metrics":
            self._send(200, self.engine.metrics().encode())
        elif self.path in pages:
            self._send(200, json.dumps(pages[self.path]).encode())
        else:
            self._send(404, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            status, told = 200, {"tokens": [int(one) for one in body["content"].split()]}
        else:
            status, told = self.engine.answer(body)
        self._send(status, json.dumps(told).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass
