"""Counters of engines, and verdicts over numbers alone: no torch, no server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3_data.cli.app import app
from eagle3_data.draft.acceptance import Verdict, agrees, judge, unpaired
from eagle3_data.draft.live import Counted, LiveError, between, of_answers, scrape
from eagle3_data.draft.walk import Counts

BEFORE = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7648e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 30.0
"""
AFTER = """vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a \\"}\\" b"} 200.0
vllm:spec_decode_num_drafts_created{engine="1",model_name="m"} 1.7648e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 900
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 250.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 1.4e2
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 160.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="1"} 40.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="1",position="1"} 1.7648e+09
"""


def test_the_difference_of_two_scrapes_engines_summed() -> None:
    found = between(scrape(BEFORE), scrape(AFTER))
    assert found is not None
    assert (found.drafts, found.accepted) == (400, 300)
    assert found.p == [200 / 400, 100 / 400]
    assert found.length == 1.75 == 1 + sum(found.p)


def test_llamacpp_counts_under_its_own_prefix() -> None:
    page = AFTER.replace("vllm:", "llamacpp:")
    found = between(scrape(""), scrape(page))
    assert found is not None and found.drafts == 500


def test_counters_that_went_down_stood_still_or_are_no_numbers() -> None:
    with pytest.raises(LiveError, match="started again"):
        between(scrape(AFTER), scrape(BEFORE))
    assert between(scrape(AFTER), scrape(AFTER)) is None
    assert between(scrape(""), scrape("vllm:generation_tokens_total 7")) is None
    with pytest.raises(LiveError, match="not a number"):
        scrape("vllm:spec_decode_num_drafts_total x")


def test_a_restart_is_told_although_the_counters_passed_the_old_ones() -> None:
    page = (
        'vllm:spec_decode_num_drafts_total{{engine="0"}} {}\n'
        'vllm:spec_decode_num_drafts_created{{engine="0"}} {}\n'
    ).format
    found = between(scrape(page(100, 1.7648e9)), scrape(page(1100, 1.7648e9)))
    assert found is not None and found.drafts == 1000
    with pytest.raises(LiveError, match="`_created` is another"):
        between(scrape(page(100, 1.7648e9)), scrape(page(1100, 1.7649e9)))


def test_sglang_tells_a_mean_in_two_places() -> None:
    assert scrape('sglang:spec_accept_length{a="b"} 2.5\n').length == 2.5
    info = {"internal_states": [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}]}
    assert scrape(json.dumps(info)).length == 2.5
    assert scrape("{}").length is None


@pytest.mark.parametrize(
    ("right", "histogram"),
    [
        ("spec_num_correct_drafts", "spec_correct_drafts_histogram"),
        ("spec_accepted_drafts", "spec_accept_histogram"),
    ],
)
def test_steps_of_sglang_answers(right: str, histogram: str) -> None:
    bodies: list[Any] = [
        {"choices": [{"meta_info": {"spec_verify_ct": 4, right: 5, histogram: [1, 2, 0, 1]}}]},
        {"meta_info": {"spec_verify_ct": 2, right: 1, histogram: [1, 1]}},
    ]
    found = of_answers(bodies)
    assert found is not None
    assert found.p == [4 / 6, 1 / 6, 1 / 6]
    assert found.length == pytest.approx(2.0)
    assert of_answers([*bodies, {"choices": []}]) is None


def test_steps_of_llamacpp_answers() -> None:
    found = of_answers([{"timings": {"predicted_n": 21, "draft_n_accepted": 10}}])
    assert found is not None
    assert (found.drafts, found.length, found.p) == (10, 2.0, None)


def walked(name: str, p: list[float], *facts: str, undone: str = "", sure: bool = False) -> Any:
    emulation = SimpleNamespace(name=name, facts=facts, undone=undone, sure=sure)
    return SimpleNamespace(emulation=emulation, counts=Counts(1000, p))


def live(*p: float) -> Counted:
    return Counted("test", 1000, 1000 * sum(p), list(p))


def test_the_tolerance() -> None:
    walk = Counts(1000, [0.7, 0.5])
    assert agrees(live(0.715, 0.515), walk)
    assert not agrees(live(0.721, 0.5), walk)
    assert not agrees(live(0.716, 0.516), walk)
    assert agrees(Counted("mean", 0, 0, None, 2.21), walk)


def test_facts_decide_between_faults_that_look_alike() -> None:
    low, high = walked("low", [0.6, 0.4]), walked("high", [0.606, 0.404], "the config says so")
    written = walked("as written", [0.7, 0.5])
    found = judge(live(0.6, 0.4), [written, low, high])
    assert (found.verdict, found.cause) == (Verdict.DIFFER, "high")
    assert found.facts == ("the config says so",)
    assert "low can not be told from it by numbers; the config decides" in found.why
    plain = judge(live(0.6, 0.4), [written, low, walked("high", [0.606, 0.404])])
    assert plain.cause == "low"
    far = judge(live(0.6, 0.4), [written, low, walked("high", [0.615, 0.404], "fact")])
    assert far.cause == "low"


def test_no_known_fault_fits() -> None:
    found = judge(live(0.2, 0.1), [walked("as written", [0.7, 0.5]), walked("low", [0.6, 0.4])])
    assert (found.verdict, found.cause) == (Verdict.DIFFER, "")
    assert "no known fault" in found.why and "nearest is low, 0.400 away" in found.why


def test_exactly_one_is_warned_of() -> None:
    found = judge(live(0, 0), [walked("as written", [0.7, 0.5])])
    assert any("exactly 1.00" in text for text in found.warnings)


def test_agreement_with_a_checkpoint_that_is_not_what_was_trained() -> None:
    written = walked("as written", [0.5, 0.3])
    better = walked("theta", [0.7, 0.5], "fact", undone="theta in config.json, trained with other")
    found = judge(live(0.5, 0.3), [written, better])
    assert (found.verdict, found.cause) == (
        Verdict.DIFFER,
        "theta in config.json, trained with other",
    )
    slightly = walked("theta", [0.52, 0.32], undone="theta")
    assert judge(live(0.5, 0.3), [written, slightly]).verdict is Verdict.AGREE
    by_config = walked("theta", [0.52, 0.32], "the target has another", undone="theta")
    assert judge(live(0.5, 0.3), [written, by_config]).cause == "theta"
    hardly = walked("theta", [0.504, 0.304], "the target has another", undone="theta")
    assert judge(live(0.5, 0.3), [written, hardly]).verdict is Verdict.AGREE


def test_a_fault_too_mild_for_numbers_is_the_configs_to_tell() -> None:
    written, low = walked("as written", [0.5, 0.3]), walked("low", [0.495, 0.3])
    plain = judge(live(0.495, 0.3), [written, low, walked("high", [0.4, 0.2])])
    assert plain.verdict is Verdict.AGREE
    assert plain.why.endswith("; too mild here to be seen: low")
    config = walked("low", [0.495, 0.3], "the engine reads 0, 13, 25", sure=True)
    found = judge(live(0.495, 0.3), [written, config])
    assert (found.verdict, found.cause) == (Verdict.DIFFER, "low")
    assert "the config does" in found.why


EVALUATION: dict[str, Any] = {
    "walk": {
        "steps": 500, "p": [0.5, 0.25], "acceptance_length": 1.75,
        "p_interval": [[0.47, 0.53], [0.22, 0.28]], "acceptance_length_interval": [1.7, 1.8],
    }
}  # fmt: skip


def test_saved_scrapes_use_the_sampling_interval_and_say_so() -> None:
    found = unpaired(EVALUATION, [BEFORE, AFTER])
    assert found.verdict is Verdict.INSIDE and found.sound
    assert "other text" in found.why and "measure paired" in found.why
    once = unpaired(EVALUATION, [AFTER])
    assert "since the engine was started" in once.warnings[0]
    low = {"walk": EVALUATION["walk"] | {"p_interval": [[0.51, 0.6], [0.2, 0.3]]}}
    outside = unpaired(low, [BEFORE, AFTER])
    assert outside.verdict is Verdict.OUTSIDE
    assert outside.warnings == ("P_1 0.500 is outside 0.510-0.600",)
    gauge = unpaired(EVALUATION, ["sglang:spec_accept_length 2.5\n"])
    assert gauge.verdict is Verdict.OUTSIDE
    assert unpaired(EVALUATION, [AFTER, AFTER]).verdict is Verdict.OFF
    with pytest.raises(LiveError, match="evaluate --json"):
        unpaired({}, [BEFORE, AFTER])
    with pytest.raises(LiveError, match="no interval"):
        unpaired({"walk": {"p": [1.0], "acceptance_length": 2.0}}, [BEFORE, AFTER])


def test_the_command_on_saved_files(tmp_path: Path) -> None:
    for name, text in (("b", BEFORE), ("a", AFTER), ("e.json", json.dumps(EVALUATION))):
        (tmp_path / name).write_text(text)
    call = ["acceptance", "--offline", str(tmp_path / "e.json")]
    call += ["--metrics", str(tmp_path / "b"), "--metrics", str(tmp_path / "a")]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0
    assert result.stdout.startswith("verdict: inside the sampling interval\n")
    found = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert (found["sound"], found["paired"]) == (True, False)
    (tmp_path / "e.json").write_text("no json")
    assert CliRunner().invoke(app, call).exit_code == 2
