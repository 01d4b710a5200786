"""Start a real engine in one of its set-ups, and stop it.

What enters: the name of an engine and of a set-up; the folder that `engines/install` filled. What
leaves: the address of a server on loopback that is ready. It promises to stop exactly the processes
that it started, and that a server which does not come up says why.

By hand, until Ctrl-C:   python engines/serve.py vllm "right parser" --port 18001
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

MODEL = "smollm2-think"
READY_S = 900
"""vLLM is up after 30 s on two free cores; on a busy machine it took 200 s."""
STOP_S = 20


class Engine(StrEnum):
    """An engine of `engines/install`."""

    VLLM = "vllm"
    LLAMACPP = "llama.cpp"
    TRANSFORMERS = "transformers"


class Setup(StrEnum):
    """What a person may have configured of the reasoning."""

    RIGHT = "right parser"
    NONE = "no parser"
    WRONG = "wrong parser"
    OFF = "thinking off"


OPTIONS: dict[Engine, dict[Setup, list[str]]] = {
    Engine.VLLM: {
        Setup.RIGHT: ["--reasoning-parser", "deepseek_r1"],
        Setup.NONE: [],
        # looks for English phrases, so that everything stays in the content
        Setup.WRONG: ["--reasoning-parser", "granite"],
        Setup.OFF: [
            *("--reasoning-parser", "deepseek_r1"),
            *("--default-chat-template-kwargs", '{"enable_thinking": false}'),
        ],
    },
    Engine.LLAMACPP: {
        Setup.RIGHT: ["--reasoning-format", "deepseek"],
        Setup.NONE: ["--reasoning-format", "none"],
        # its parser takes the markers from the template: here those of another family
        Setup.WRONG: [
            *("--reasoning-format", "deepseek"),
            *("--chat-template-file", "models/wrong.jinja"),
        ],
        Setup.OFF: ["--reasoning-format", "deepseek", "--reasoning", "off"],
    },
    Engine.TRANSFORMERS: {  # its parser is a part of the model: see FOLDERS
        Setup.RIGHT: [],
        Setup.NONE: [],
        Setup.WRONG: [],
        Setup.OFF: ["--reasoning", "off"],
    },
}
FOLDERS = {
    Setup.RIGHT: "right-parser",
    Setup.NONE: "no-parser",
    Setup.WRONG: "wrong-parser",
    Setup.OFF: "right-parser",
}


@dataclass(frozen=True, slots=True)
class Command:
    """How a server is started."""

    arguments: list[str]
    environment: dict[str, str]
    folder: Path
    """Where it runs."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    engine: Engine
    setup: Setup
    base_url: str
    log: Path


def home() -> Path:
    """The folder of the engines."""
    return Path(os.environ.get("EAGLE3_ENGINES") or "~/.cache/eagle3-engines").expanduser()


def command(
    engine: Engine,
    setup: Setup,
    port: int,
    *,
    model: str = MODEL,
    more: Sequence[str] = (),
    bound: bool = False,
) -> Command:
    """`more`: further options of the engine; they win over those of the set-up. Only vLLM serves
    another `model` than the usual one, and can bind a thread to each core: on two idle cores it
    makes 200 tokens/s so (16 requests in flight), 125 with one free thread.
    """
    where = home()
    options = [*OPTIONS[engine][setup], *more]
    address = ["--host", "127.0.0.1", "--port", str(port)]
    match engine:
        case Engine.VLLM:
            # the module form: the command `vllm` looks for package metadata that this build lacks
            start = [str(where / "vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
            start += ["--model", str(where / "models" / model), "--served-model-name", model]
            start += ["--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager"]
            settings = {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "PYTHONPATH": str(Path(__file__).parent.absolute()),  # of the connector
                # two bound threads wait for each other: on a busy machine a request took 84 s with
                # them and 6 s with one that is free
                **(
                    {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
                    if bound
                    else {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
                ),
            }
            folder = where
        case Engine.LLAMACPP:
            start = [str(where / "llama.cpp/llama-server"), "-m", f"llama.cpp/{MODEL}.gguf"]
            start += ["--alias", MODEL, "--offline", "--jinja", "--metrics"]
            # one thread, as for vLLM; with its default polling a busy core slows it a hundredfold
            start += ["-t", "1", "--poll", "0", "-c", "16384", "-np", "8"]
            settings = {}
            folder = where
        case Engine.TRANSFORMERS:
            start = [str(where / "transformers/bin/transformers"), "serve", MODEL]
            start += ["--device", "cpu"]
            settings = {"OMP_NUM_THREADS": "1"}  # as for vLLM
            folder = where / "models/transformers" / FOLDERS[setup]
    environment = {**os.environ, **settings, "HF_HUB_OFFLINE": "1"}
    return Command([*start, *address, *options], environment, folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def drafting(drafter: Path, drafts: int = 3) -> list[str]:
    """Options of a vLLM that speculates with `drafter`."""
    how = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": drafts}
    return ["--speculative-config", json.dumps(how)]


def extracting(entering: Sequence[int], room: Path) -> list[str]:
    """Options of a vLLM that leaves in `room` what enters these layers; their number means the
    output of the last one.
    """
    speculation = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(entering)}},
    }
    transfer = {
        "kv_connector": "CPUHiddenStatesConnector",
        "kv_connector_module_path": "cpu_hidden_states_connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(room)},
    }
    options = ["--no-enable-prefix-caching", "--speculative-config", json.dumps(speculation)]
    return [*options, "--kv-transfer-config", json.dumps(transfer)]


@contextmanager
def running(
    engine: Engine,
    setup: Setup,
    *,
    log: Path,
    port: int | None = None,
    model: str = MODEL,
    more: Sequence[str] = (),
    bound: bool = False,
) -> Iterator[Running]:
    """A server of its own process group, ready; its group is ended afterwards."""
    port = port or free_port()
    how = command(engine, setup, port, model=model, more=more, bound=bound)
    with log.open("wb") as output:
        process = subprocess.Popen(
            how.arguments,
            cwd=how.folder,
            env=how.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}/health", log)
        yield Running(engine, setup, f"http://127.0.0.1:{port}/v1", log)
    finally:
        stop(process)


def wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not answers(address):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = f"ended with code {process.returncode}" if ended else "is not ready"
            tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise RuntimeError(f"the server {what}; the end of {log}:\n{tail}")
        time.sleep(0.5)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the group of `process`: vLLM has workers of its own."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break  # no process of the group is left
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue
        time.sleep(0.5)  # its workers follow it; those that do not are killed in the next round


def main() -> None:
    parser = argparse.ArgumentParser(description="Start a real engine until Ctrl-C.")
    parser.add_argument("engine", type=Engine, choices=list(Engine))
    parser.add_argument("setup", type=Setup, choices=list(Setup), nargs="?", default=Setup.RIGHT)
    parser.add_argument("--port", type=int)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        log = Path(folder) / "log"
        with running(given.engine, given.setup, log=log, port=given.port) as server:
            sys.stdout.write(f"{server.base_url} is ready; its log is {log}; Ctrl-C ends it\n")
            sys.stdout.flush()
            signal.pause()


if __name__ == "__main__":
    main()
