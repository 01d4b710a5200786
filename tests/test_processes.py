"""Several processes give what one thread gives, and none of them is trusted to live."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eagle3_data import check, convert, pipeline
from eagle3_data.audit.judge import Judged
from eagle3_data.pipeline import begin
from eagle3_data.processes import Crew, Lost, Process, Work
from eagle3_data.records import lines
from eagle3_data.spill import Conversion, Spill
from eagle3_data.writing import OutputError

ROOT = Path(__file__).parent.parent
CAPTURES = ROOT / "fixtures" / "captures"
CLEAN = CAPTURES / "clean_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
DEFAULTS = dict(lines.read_batches.__kwdefaults__ or {})


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every input is large enough for processes, and comes in batches of seven lines."""
    from eagle3_data import plan

    monkeypatch.setattr(pipeline, "PROCESSES_FROM_BYTES", 0)
    monkeypatch.setattr(plan, "HEAD_RECORDS", 10)
    monkeypatch.setattr(lines.read_batches, "__kwdefaults__", {**DEFAULTS, "target_records": 7})


@pytest.fixture
def run(many: None) -> pipeline.Run:
    return begin(CLEAN, tokenizer=TOKENIZER)


def work_of(run: pipeline.Run) -> Work:
    return Work(run.parsing, run.stations)


def ready(work: Work) -> Process:
    process = Process()
    try:
        process.ready(pickle.dumps(work))
    except BaseException:
        finished(process)
        raise
    return process


def finished(process: Process) -> None:
    process.close()
    process.forget()


def told_apart(parts: Iterator[Judged]) -> list[tuple[int, list[Any]]]:
    return [(part.light.height, part.light["line"].to_list()) for part in parts]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tokenizer": TOKENIZER},
        {"tokenizer": TOKENIZER, "turns": "all", "repair": True, "error": ["GEN"]},
        {"holdout": [CLEAN], "ignore": ["SET"]},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_processes_find_what_a_thread_finds(many: None, options: dict[str, Any]) -> None:
    inputs = sorted(CAPTURES.glob("*.jsonl"))
    alone = check(inputs, **options, workers=1)
    shared = check(inputs, **options, workers=3)
    assert alone.notes == shared.notes  # no process was lost, and none was missing
    assert shared.ledger == alone.ledger
    assert shared.findings.equals(alone.findings)
    assert shared.records.equals(alone.records)


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(("limit", "used"), [(1, 1), (10_000_000, 0)])
def test_large_inputs_go_to_processes(
    monkeypatch: pytest.MonkeyPatch, limit: int, used: int, repair: bool
) -> None:
    entered = []
    enter = Crew.__enter__
    monkeypatch.setattr(Crew, "__enter__", lambda crew: entered.append(crew.size) or enter(crew))
    monkeypatch.setattr(pipeline, "PROCESSES_FROM_BYTES", limit)
    monkeypatch.setattr("eagle3_data.plan.HEAD_RECORDS", 10)
    monkeypatch.setattr(lines.read_batches, "__kwdefaults__", {**DEFAULTS, "target_records": 7})
    for workers in (1, 2):
        assert check(CLEAN, repair=repair, workers=workers).ledger.lines == 39
    assert entered == [2] * used


def test_shards_are_the_same_bytes(many: None, tmp_path: Path) -> None:
    made = {}
    for workers in (1, 3):
        _, manifest = convert(
            [CLEAN], tmp_path / f"{workers}", tokenizer=TOKENIZER, workers=workers
        )
        assert manifest is not None
        made[workers] = [(shard.rows, shard.sha256) for shard in manifest.shards]
    assert made[1] == made[3]
    assert sum(rows for rows, _ in made[1]) == 39


def test_the_lines_of_a_lost_process_are_judged_again(run: pipeline.Run) -> None:
    wanted = told_apart(map(work_of(run).run, begin(CLEAN, tokenizer=TOKENIZER).rest))
    told: list[str] = []
    with Crew(work_of(run), 2, told) as crew:
        for starter in crew._starting:
            starter.join()
        [other] = crew._others
        other._child.send_signal(signal.SIGKILL)
        assert told_apart(crew.judged(run.rest)) == wanted
    assert told == ["a process was lost, its lines were judged again: it ended with signal 9"]


def test_work_that_can_not_travel_stays_here(run: pipeline.Run) -> None:
    unknown = replace(run.stations.rules[0], code="RAW999")
    stations = replace(run.stations, rules=[*run.stations.rules, unknown])
    told: list[str] = []
    with Crew(Work(run.parsing, stations), 2, told) as crew:
        assert sum(part.light.height for part in crew.judged(run.rest)) == 25
        for starter in crew._starting:
            starter.join()
        assert crew._free.qsize() == 1  # the caller alone
    assert told == ["a process could not be used, others did its work: there is no rule RAW999"]

    class Here:
        def __reduce__(self) -> str:
            raise OSError("no way")

        def run(self, records: pl.DataFrame) -> Judged:
            return begin(CLEAN).stations.run(records)

    told = []
    with Crew(Work(run.parsing, Here()), 2, told) as crew:
        assert crew._starting == []
        assert sum(part.light.height for part in crew.judged(begin(CLEAN).rest)) == 25
    assert told[0].startswith("one process did all the work: it can not be sent to others (")


def test_a_process_raises_what_the_road_raised(many: None, tmp_path: Path) -> None:
    from eagle3_data.shards.admission import Admission, OnTooLong
    from eagle3_data.shards.splits import Splits
    from eagle3_data.tokens.samples import Grade

    run = begin(CLEAN, tokenizer=TOKENIZER, samples=True)
    admission = Admission(Grade.D, None, OnTooLong.QUARANTINE)
    spill = Spill(tmp_path / "nowhere")
    road = Conversion(run.stations, spill, admission, Splits.parse("train=1"), [str(CLEAN)])
    process = ready(Work(run.parsing, road))
    try:
        with pytest.raises(OutputError, match=r"nowhere.*can not be written"):
            process.run(next(run.rest))
        with pytest.raises(OutputError):  # it goes on
            process.run(next(run.rest))
    finally:
        finished(process)


def test_the_last_words_of_a_lost_process_are_told(
    run: pipeline.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; sys.stderr.write('one\\ntwo \\x1b[31m three\\n'); sys.exit(3)"
    monkeypatch.setattr("eagle3_data.processes._START", code)
    with pytest.raises(Lost) as lost:
        ready(work_of(run))
    assert str(lost.value) == "it ended with code 3: two \\x1b[31m three"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Lost, match="it can not be started"):
        Process()
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    with pytest.raises(Lost, match="uwsgi is no Python that can be started"):
        Process()


def test_a_vocabulary_that_changed_is_refused(many: None, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "tokenizer"
    shutil.copytree(TOKENIZER, copy)
    run = begin(CLEAN, tokenizer=copy)
    (copy / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="the files of the tokenizer changed"):
        ready(work_of(run))


def test_a_dead_process_is_lost_and_a_closed_one_is_gone(run: pipeline.Run) -> None:
    process = ready(work_of(run))
    process._child.kill()
    with pytest.raises(Lost, match="it ended with signal 9"):
        process.run(next(run.rest))
    finished(process)
    process = ready(work_of(run))
    finished(process)
    assert process._child.poll() == -9


def test_files_beside_the_data_are_not_imported(
    run: pipeline.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "polars.py").write_text("open('ran', 'w')")
    (tmp_path / "pickle.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    finished(ready(work_of(run)))
    assert not (tmp_path / "ran").exists()


def test_what_the_start_of_an_interpreter_prints_is_passed_over(
    run: pipeline.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('This site is customised', end='')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finished(ready(work_of(run)))


def interrupted(batches: Iterator[lines.LineBatch]) -> Iterator[lines.LineBatch]:
    yield from islice(batches, 2)
    raise KeyboardInterrupt


def test_a_stopped_process_does_not_keep_an_ended_run(run: pipeline.Run) -> None:
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt), Crew(work_of(run), 3, told) as crew:
        for starter in crew._starting:
            starter.join()
        for other in crew._others:
            other._child.send_signal(signal.SIGSTOP)
        list(crew.judged(interrupted(run.rest)))
    assert [other._child.poll() for other in crew._others] == [-9, -9]
    assert told == []


def test_nobody_judges_for_an_ended_run(run: pipeline.Run) -> None:
    crew = Crew(work_of(run), 3, [])
    with crew:
        crew._close()
        with pytest.raises(Lost, match="the run has ended"):
            crew._judge(next(run.rest))
        assert crew._free.qsize() == 1


def test_short_turns_end_with_the_last_run() -> None:
    before = sys.getswitchinterval()
    first, second = pipeline._short_turns(), pipeline._short_turns()
    first.__enter__()
    second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def test_the_place_of_a_fault_comes_along(run: pipeline.Run) -> None:
    process = ready(Work(run.parsing, replace(run.stations, thresholds=None)))  # type: ignore[arg-type]
    try:
        with pytest.raises(AttributeError) as fault:
            process.run(next(run.rest))
    finally:
        finished(process)
    assert "signals.py" in fault.value.__notes__[0]


SCRIPT = """
import sys
from eagle3_data import check, pipeline, plan, processes
from eagle3_data.records import lines

pipeline.PROCESSES_FROM_BYTES, plan.HEAD_RECORDS = 0, 1
lines.read_batches.__kwdefaults__["target_records"] = 1

started = processes.Crew._start
def start(crew, packed, number):
    started(crew, packed, number)
    print("process", crew._others[0]._child.pid, flush=True)
    sys.stdin.read()
processes.Crew._start = start
print("ledger", check(sys.argv[1], workers=2).ledger.kept, flush=True)
"""


def script(tmp_path: Path) -> subprocess.Popen[str]:
    """A script without a guard, as people write them in notebooks and small tools."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(file), str(CLEAN)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    out, _ = script(tmp_path).communicate("")
    assert sorted(word.split()[0] for word in out.splitlines()) == ["ledger", "process"]
    assert "ledger 39" in out


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_ends_when_its_caller_is_killed(tmp_path: Path) -> None:
    caller = script(tmp_path)
    assert caller.stdout is not None
    told = caller.stdout.readline()
    while not told.startswith("process"):
        told = caller.stdout.readline()
    pid = int(told.split()[1])
    caller.kill()
    caller.communicate()
    deadline = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
