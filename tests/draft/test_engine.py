"""The vLLM backend against a double of its extraction: ids, order, norm, files, errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file
from tiny import DEPTH, LAYERS, loaded, saved, spoken
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.draft.engine import connect
from eagle3_data.draft.extract import Choice, extract
from eagle3_data.draft.forward import Forward
from eagle3_data.draft.states import open_states
from eagle3_data.draft.states_manifest import StatesError

CHOICE = Choice(layers=(4, 0, 2), batch_tokens=90, file_bytes=30_000)


class Double:
    """Answers as vLLM 0.32 does: states of what enters the layers `ids`, the last id unnormed."""

    def __init__(self, forward: Forward, folder: Path) -> None:
        self.forward, self.folder = forward, folder
        self.ids = [*(k + 1 for k in sorted(LAYERS)), DEPTH]
        self.faults: dict[str, Any] = {}
        self.number = 0
        self._lock = threading.Lock()
        handler = type("Handler", (Handler,), {"double": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def completed(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = np.array([*self.faults.get("first", []), *body["prompt"]], dtype=np.int32)
        with self._lock:  # hooks sit on the one model
            self.number += 1
            path = self.folder / f"{self.number}.safetensors"
            alone = self.forward.alone(ids)
        outs = [alone.embedding, *alone.outs.values()]
        wide = torch.stack([outs[k] for k in self.faults.get("ids", self.ids)], dim=1)
        told = {"hidden_states": wide.bfloat16().contiguous(), "token_ids": torch.tensor(ids)}
        path.with_name(path.name + ".lock").touch()
        if not self.faults.get("unwritten"):
            save_file(told, path)
        path = self.faults.get("names", path)
        params = None if self.faults.get("plain") else {"hidden_states_path": str(path)}
        return {"choices": [{"text": "x"}], "kv_transfer_params": params}


class Handler(BaseHTTPRequestHandler):
    double: Double

    def do_GET(self) -> None:
        answers = {
            "/v1/models": {"data": [] if self.double.faults.get("empty") else [{"id": "tiny"}]},
            "/version": {"version": "0.32.0"},
        }
        self.answer(200, answers[self.path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "tiny" and body["max_tokens"] == 1
        if self.double.faults.get("long"):
            self.answer(400, {"error": {"message": "maximum context length is 8"}})
        else:
            self.answer(200, self.double.completed(body))

    def answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("room")
    spoken(room / "shards", loaded(saved(room / "target")))
    (room / "states").mkdir()
    return room


@pytest.fixture(scope="module")
def forward(room) -> Forward:
    return loaded(room / "target")


@pytest.fixture(scope="module")
def shards(room, forward) -> Any:
    from eagle3_data.shards.reader import open_shards

    return open_shards(room / "shards")


@pytest.fixture(scope="module")
def serving(room, forward) -> Iterator[Double]:
    double = Double(forward, room / "states")
    yield double
    double.server.shutdown()
    double.server.server_close()


@pytest.fixture
def double(serving) -> Iterator[Double]:
    yield serving
    serving.faults = {}


@pytest.mark.parametrize("light", [False, True])
def test_both_backends_give_the_same_states(tmp_path, shards, forward, double, room, light) -> None:
    engine = connect(double.url, str(room / "target"), checker=None if light else forward)
    done = extract(shards, engine, tmp_path / "vllm", CHOICE)
    assert done.sound and done.findings == ()
    extract(shards, forward, tmp_path / "transformers", CHOICE)
    one, other = open_states(tmp_path / "vllm"), open_states(tmp_path / "transformers")
    assert one.manifest.identity.made_by["backend"] == "vllm"
    assert one.manifest.identity.made_by["vllm"] == "0.32.0"
    assert one.manifest.target.weights == other.manifest.target.weights
    assert one.manifest.final_norm == "post"
    for a, b in zip(one, other, strict=True):
        assert a.sample_id == b.sample_id
        torch.testing.assert_close(a.aux, b.aux, rtol=2**-6, atol=1e-2)
        torch.testing.assert_close(a.final, b.final, rtol=2**-6, atol=1e-2)
    assert not list((room / "states").iterdir())  # what was read is removed


@pytest.mark.parametrize(
    ("faults", "word"),
    [
        ({"first": [0]}, "HID001"),
        ({"ids": [1, 3, 5]}, "start it with eagle_aux_hidden_state_layer_ids"),
        ({"plain": True}, "answers without hidden states"),
        ({"unwritten": True}, "must share that folder"),
        ({"long": True}, "maximum context length is 8"),
    ],
)
def test_an_engine_that_does_otherwise_is_told(
    tmp_path, shards, forward, double, faults, word
) -> None:
    double.faults = faults
    engine = connect(double.url, "tiny", checker=forward)
    with pytest.raises(StatesError, match=word):
        extract(shards, engine, tmp_path, CHOICE)


def test_an_engine_that_captures_other_layers_is_named(tmp_path, shards, forward, double) -> None:
    double.faults = {"ids": [0, 2, 4, DEPTH]}  # one too low, as in a config with outputs
    done = extract(shards, connect(double.url, "tiny", checker=forward), tmp_path, CHOICE)
    assert [finding.code for finding in done.findings] == ["HID008"] * 3
    double.faults = {"ids": [1, 3, 5, DEPTH - 1]}
    done = extract(shards, connect(double.url, "tiny", checker=forward), tmp_path, CHOICE)
    assert [finding.code for finding in done.findings] == ["HID007"]


def test_a_file_that_the_engine_only_names_is_left_alone(tmp_path, shards, forward, double) -> None:
    mine = tmp_path / "diary.txt"
    mine.write_text("dear diary")
    double.faults = {"names": mine}
    with pytest.raises(StatesError, match="can not be read"):
        extract(shards, connect(double.url, "tiny", checker=forward), tmp_path / "out", CHOICE)
    other = tmp_path / "other.safetensors"
    save_file({"token_ids": torch.tensor([1]), "hidden_states": torch.zeros(1)}, other)
    double.faults = {"names": other}
    with pytest.raises(StatesError, match="not the"):
        extract(shards, connect(double.url, "tiny", checker=forward), tmp_path / "out", CHOICE)
    assert mine.read_text() == "dear diary" and other.is_file()


def test_what_is_no_vllm_is_refused(double, forward) -> None:
    double.faults = {"empty": True}
    with pytest.raises(StatesError, match="serves no model"):
        connect(double.url, "tiny", checker=forward)
    with pytest.raises(StatesError, match="is no address"):
        connect("file:///etc", "tiny", checker=forward)
    with pytest.raises(StatesError, match="is the engine up"):
        connect("http://127.0.0.1:9", "tiny", checker=forward)


def test_the_command(tmp_path, room, double) -> None:
    run = ["extract", str(room / "shards"), "--target", str(room / "target")]
    more = ["--layers", "0,2,4", "--backend", "vllm"]
    url = ["--base-url", double.url.removesuffix("/v1")]
    for light in ([], ["--light-check"]):
        out = str(tmp_path / f"states{len(light)}")
        result = CliRunner().invoke(app, [*run, *more, *url, *light, "-o", out])
        assert result.exit_code == 0, result.output
        assert ("loading" in result.stderr) == (not light)
    for wrong in (more, url, ["--light-check"]):
        result = CliRunner().invoke(app, [*run, *wrong, "-o", str(tmp_path / "wrong")])
        assert result.exit_code == 2
