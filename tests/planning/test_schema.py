"""What a plan may say, and how it is told where it is wrong: every complaint names file, line and key."""

import json
import math
from dataclasses import astuple, fields
from pathlib import Path
from typing import get_type_hints

import pytest

from rlscope.errors import RlscopeError
from rlscope.model.decode.prior import LogNormal
from rlscope.model.forecast.plan_prior import PlanInputs, planned_system
from rlscope.model.hardware.devices import DEVICES
from rlscope.model.lengths import LengthLaw
from rlscope.model.system import Layout, WeightUpdateCost
from rlscope.planning.build import plan_of
from rlscope.planning.schema import EXAMPLE, Current, Guess, PlanFile, read_plan
from tests.model.hardware.test_parameters import LLAMA_8B
from tests.planning.small_plan import write_plan
from tests.trace_folder import sample_row, worker, write_run


def cv2(law: LengthLaw) -> float:
    """Squared coefficient of variation."""
    return law.second_moment / law.mean_tokens**2 - 1.0


MINIMAL = """\
[gpus]
total = 16
device = "H100 SXM"

[model]
parameters = 8_030_261_248
layers = 32
attention_heads = 32
kv_heads = 8
head_dim = 128

[lengths]
prompt_tokens = 200
mean_tokens = 1800
cv_ratio = 0.65
max_output_tokens = 8192

[batch]
samples_per_step = 1024
"""


def planned(folder: Path, text: str) -> PlanInputs:
    return plan_of(read_plan(write_plan(folder, text)))


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(RlscopeError) as raised:
        planned(folder, text)
    return str(raised.value).removeprefix(str(folder / "plan.toml"))


def test_the_shortest_plan_takes_the_usual_shares_and_spreads(tmp_path: Path) -> None:
    plan = planned(tmp_path, MINIMAL)
    assert (plan.device.name, plan.device.bf16_flop_per_s) == ("H100 SXM", 989e12)
    decode = plan.decode
    assert (decode.weight_bandwidth_ratio, decode.compute_ratio, decode.kv_bandwidth_ratio) == (0.75, 0.8, 0.85)
    assert (plan.training.mfu_ratio.median, plan.training.mfu_ratio.log_sd) == (0.35, 0.3)
    assert (plan.training.scaling_exponent, plan.training.scaling_exponent_sd, plan.training.at_gpus) == (0.8, 0.2, 8)
    assert plan.training.state_bytes == 16 * 8_030_261_248
    assert plan.admission.queue_capacity_samples == 1024
    assert decode.overhead_s is None
    # 8.3 s (16 GB / 60 GB)^0.37.
    assert plan.update.seconds is not None and not plan.update.is_stated
    assert (plan.update.seconds.median, plan.update.seconds.log_sd) == (pytest.approx(5.09, abs=0.01), 1.2)
    assert plan.lengths_log_sd == 0.0
    present = planned(tmp_path, f"{MINIMAL}[current]\ntrainer_gpus = 8\nsampler_gpus = 8\nmax_running = 64\n").present
    assert (plan.present, present) == (None, Layout(8, 8, 64))
    # 0.9 of 80 GB, less 4 GB and the weights, in blocks of 16 tokens of 131,072 bytes.
    assert plan.kv_capacity_tokens == (0.9 * 80e9 - 4e9 - 2 * 8_030_261_248) // (16 * 131_072) * 16


def test_the_example_names_every_key_there_is() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    sections = get_type_hints(PlanFile) | {"current": Current}
    del sections["source"], sections["__pydantic_config__"]
    for section, kind in sections.items():
        assert f"[{section}]" in text
        assert [each.name for each in fields(kind) if f"{each.name} =" not in text] == []


def test_what_the_example_shows_as_taken_where_missing_is_what_is_taken(tmp_path: Path) -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    shown = ("# count_prompts", "# queue_capacity_samples", "# rate_at_gpus")
    written = [line.removeprefix("# ") if line.startswith(shown) else line for line in lines]
    assert written != lines
    as_it_is, spelt_out = planned(tmp_path, "\n".join(lines)), planned(tmp_path, "\n".join(written))
    assert spelt_out.admission == as_it_is.admission
    assert spelt_out.training == as_it_is.training


def test_a_number_may_bring_its_own_spread(tmp_path: Path) -> None:
    text = MINIMAL.replace("mean_tokens = 1800", "mean_tokens = { median = 1800, log_sd = 0.2 }")
    text += "[training]\nmfu_ratio = { median = 0.3 }\n[efficiency]\ncompute_ratio = { median = 0.6, log_sd = 0 }\n"
    text += "pass_overhead_s = 0.004\n"
    file = read_plan(write_plan(tmp_path, text))
    plan = plan_of(file)
    assert (file.lengths.mean_tokens, plan.lengths_log_sd) == (Guess(1800.0, 0.2), 0.2)
    assert (plan.training.mfu_ratio.median, plan.training.mfu_ratio.log_sd) == (0.3, 0.3)
    assert (plan.decode.compute_ratio, plan.decode.compute_log_sd) == (0.6, 0.0)
    assert plan.decode.overhead_s == LogNormal(0.004, 0.3)
    assert plan.decode.weight_bandwidth_log_sd is None


DEVICE, HEADS = 'device = "H100 SXM"', "head_dim = 128\n"
SPREAD, END = "mean_tokens = 1800\ncv_ratio = 0.65\n", "1024\n"
"""Lines of the minimal plan that are replaced."""
EXPERTS, LIMITS = HEADS + "experts = 8\n", END + "[limits]\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # Unknown keys, and values of another kind.
        ("total = 16", "totl = 16", "Did you mean 'total'? `rlscope plan --example` prints"),
        ("total = 16", "total = 65_537", "found 65537; expected a whole number at least 1 and at most 65,536"),
        ("cv_ratio = 0.65", "cv_ratio = 0", "found 0; expected a number at least 0.001 and at most 10"),
        ("= 1800", "= {median = 1800, log_sd = 3.1}", "log_sd = a number at least 0 and at most 3 }"),
        ("prompt_tokens = 200\n", "", "lengths.prompt_tokens: found no such key; expected prompt_tokens or from_run"),
        ("[batch]", "[bach]", "bach: found unknown key 'bach'; expected one of gpus, model"),
        ("[gpus]", "weights = 1024\n[gpus]", "weights: found 1024; expected a table"),
        (DEVICE, 'device = "H100 SMX"', "Did you mean 'H100 SXM'? For another device give peak_tflops, bandwidth_tb_"),
        # Figures that exclude each other.
        (END, END + "group_size = 1025\n", "expected at most samples_per_step, 1024"),
        (END, LIMITS + "staleness_policy = 'drop'\n", "found 'drop' and no max_staleness"),
        (END, LIMITS + "staleness_policy = 'never'\n", "found 'never'; expected one of 'by_layout', 'admission'"),
        (END, LIMITS + "queue_capacity_samples = 1023\n", "expected at least 1024, the whole groups of a step"),
        (END, END + "group_size = 3\n[limits]\nmax_in_flight_samples = 1025\n", "expected at least 1026"),
        (END, END + "[current]\ntrainer_gpus = 8\nsampler_gpus = 9\nmax_running = 64\n", "at most gpus.total, 16"),
        (HEADS, HEADS + "kv_latent_dim = 576\n", "found both kv_heads and kv_latent_dim; expected one of them"),
        ("\nkv_heads = 8\n", "\nkv_heads = 33\n", "found 33; expected at most the model's 32 attention heads"),
        # A mixture of experts is described whole.
        (HEADS, EXPERTS, "model.experts_per_token: found no such key"),
        (HEADS, EXPERTS + "experts_per_token = 9\nactive_parameters = 1e9\n", "expected at most the model's 8 experts"),
        (HEADS, EXPERTS + "experts_per_token = 2\nactive_parameters = 9e9\n", "at most the 8,030,261,248 parameters"),
        # Lengths that cannot be.
        (SPREAD, "cv_ratio = 0.5\n", "neither; expected either mean_tokens with cv_ratio, or percentiles, or from_run"),
        (SPREAD, "mean_tokens = 1800\n", "lengths.cv_ratio: found no such key"),
        (SPREAD, SPREAD + "percentiles = {p50 = 1, p90 = 2}\n", "found both"),
        (SPREAD, "mean_tokens = 8192\ncv_ratio = 0.1\n", "a mean of 8192 tokens is not below the cap of 8192"),
        (SPREAD, "mean_tokens = 4096\ncv_ratio = 1.01\n", "under a cap of 8192 varies by less than 1.00"),
        (SPREAD, "percentiles = {p50 = 1500}\n", "at least two percentiles"),
        (SPREAD, "percentiles = {p0 = 1, p50 = 1500}\n", "above 0 and below 100"),
        (SPREAD, "percentiles = {p50 = 1500, p90 = 1500}\n", "lengths must grow with their percentile"),
        (SPREAD, "percentiles = {p50 = 1500, p90 = 8192}\n", "a percentile of 8192 tokens is not below the cap"),
        (SPREAD, "percentiles = {median = 1500, p90 = 3000}\n", "percentiles named median, p90"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_its_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in MINIMAL
    message = complaint(tmp_path, MINIMAL.replace(old, new))
    assert message.startswith(", ") and said in message


def test_limits_that_hold_just_the_whole_groups_of_a_step_are_allowed(tmp_path: Path) -> None:
    plan = planned(tmp_path, f"{MINIMAL}group_size = 3\n[limits]\nmax_in_flight_samples = 1026\n")
    assert (plan.admission.max_in_flight_samples, plan.admission.queue_capacity_samples) == (1026, 1026)


@pytest.mark.parametrize(
    ("fewest", "more", "said"),
    [
        (2, "", "gpus.total: found 1; expected at least 2: a trainer replica and an engine"),
        (16, "gpus_per_engine = 2\ngpus_per_node = 8", "found 15; expected at least 16"),
    ],
)
def test_a_plan_has_gpus_for_a_replica_and_an_engine_in_whole_nodes(
    tmp_path: Path, fewest: int, more: str, said: str
) -> None:
    too_few, enough = (MINIMAL.replace("total = 16", f"total = {gpus}\n{more}") for gpus in (fewest - 1, fewest))
    assert said in complaint(tmp_path, too_few)
    assert planned(tmp_path, enough).gpus == fewest


def test_a_model_that_no_engine_holds_is_refused_with_the_gpus_that_would(tmp_path: Path) -> None:
    large = MINIMAL.replace("8_030_261_248", "70_553_706_496").replace("layers = 32", "layers = 80")
    message = complaint(tmp_path, large)
    # 141.1 GB of weights; three GPUs leave 0.9 * 80 - 4 = 68 GB each.
    assert ", gpus.gpus_per_engine: found 1, whose 80 GB do not hold 141 GB of weights" in message
    assert "expected at least 3 GPUs of H100 SXM for an engine" in message
    assert planned(tmp_path, large.replace("total = 16", "total = 16\ngpus_per_engine = 3")).kv_capacity_tokens > 0


def test_a_device_of_ones_own_takes_all_three_figures(tmp_path: Path) -> None:
    own = MINIMAL.replace('device = "H100 SXM"', "peak_tflops = 500\nbandwidth_tb_per_s = 2\nmemory_gb = 64")
    device = planned(tmp_path, own).device
    assert (device.bf16_flop_per_s, device.bandwidth_bytes_per_s, device.memory_bytes) == (500e12, 2e12, 64e9)
    assert "gpus.memory_gb: found no such key" in complaint(tmp_path, own.replace("memory_gb = 64", ""))
    # One of them overrides that of the table.
    device = planned(tmp_path, MINIMAL.replace("total = 16", "total = 16\nmemory_gb = 94")).device
    assert (device.memory_bytes, device.bandwidth_bytes_per_s) == (94e9, 3.35e12)


@pytest.mark.parametrize("name", [*(device.name for device in DEVICES), "h200", "NVIDIA H100 80GB HBM3"])
def test_devices_are_found_by_their_name_and_by_the_drivers(tmp_path: Path, name: str) -> None:
    found = planned(tmp_path, MINIMAL.replace("H100 SXM", name)).device
    assert found.name.casefold() in (name.casefold(), "h100 sxm")


def test_lengths_have_the_mean_and_the_spread_that_are_stated_after_the_cap(tmp_path: Path) -> None:
    law = planned(tmp_path, MINIMAL.replace("max_output_tokens = 8192", "max_output_tokens = 3000")).workload.lengths
    assert (law.mean_tokens, math.sqrt(cv2(law))) == pytest.approx((1800, 0.65), rel=2e-3)
    assert law.capped_ratio > 0.2
    free = planned(tmp_path, MINIMAL.replace("max_output_tokens = 8192\n", "")).workload.lengths
    assert (free.mean_tokens, math.sqrt(cv2(free))) == pytest.approx((1800, 0.65), rel=2e-3)


def test_lengths_go_through_the_percentiles_that_are_stated(tmp_path: Path) -> None:
    text = MINIMAL.replace(SPREAD, "percentiles = { p50 = 1500, 'p84.1344746' = 2733.178 }\n")
    law = planned(tmp_path, text).workload.lengths
    # Median 1500 and sigma 0.6, cut at 8192.
    assert (law.mean_tokens, cv2(law)) == pytest.approx((1791.77, 0.4142), rel=2e-4)


def recorded(tmp_path: Path, **config: object) -> str:
    """A plan whose lengths are those of a run beside it."""
    samples = [sample_row(f"s{length}", "e0", [(0, 0, length)], prompt_tokens=30) for length in (100, 200, 300)]
    unfinished = sample_row("late", "e0", [(0, 0, 200)], prompt_tokens=50, finish_reason="unfinished")
    write_run(tmp_path / "earlier", [worker("e0")], config, samples=[*samples, unfinished])
    stated = "prompt_tokens = 200\nmean_tokens = 1800\ncv_ratio = 0.65\nmax_output_tokens = 8192\n"
    return MINIMAL.replace(stated, 'from_run = "earlier"\n')


def test_lengths_of_an_earlier_run_are_its_own_law_and_its_prompts(tmp_path: Path) -> None:
    plan = planned(tmp_path, recorded(tmp_path))
    law = plan.workload.lengths
    # Three are at least 200 long; one of them ends there, and one was only seen so far.
    assert law.support.tolist() == [100.0, 200.0, 300.0]
    assert law.probabilities.tolist() == pytest.approx([0.25, 0.25, 0.5])
    assert plan.workload.prompt_tokens == 35.0
    assert plan.lengths_from == "earlier"
    assert planned(tmp_path, MINIMAL).lengths_from is None
    # The plan may cut them, and have prompts of its own.
    own = 'from_run = "earlier"\nmax_output_tokens = 250\nprompt_tokens = 9'
    cut = planned(tmp_path, recorded(tmp_path).replace('from_run = "earlier"', own)).workload
    assert (cut.lengths.max_tokens, cut.lengths.max_output_tokens, cut.prompt_tokens) == (250.0, 250, 9.0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("mean_tokens = 5", "lengths.mean_tokens: found both from_run and mean_tokens; expected one of them"),
        ("max_output_tokens = 301", "tokens: found 301; expected at most 300, where the run cut responses"),
    ],
)
def test_recorded_lengths_are_not_stated_besides_nor_longer_than_was_seen(tmp_path: Path, more: str, said: str) -> None:
    text = recorded(tmp_path, max_output_tokens=300)
    assert said in complaint(tmp_path, text.replace('from_run = "earlier"', f'from_run = "earlier"\n{more}'))
    assert planned(tmp_path, text.replace('from_run = "earlier"', 'from_run = "earlier"\nmax_output_tokens = 300'))


def test_a_run_without_samples_or_no_run_at_all_has_no_lengths(tmp_path: Path) -> None:
    write_run(tmp_path / "empty", [worker("e0")], {}, samples=[])
    text = recorded(tmp_path)
    found = complaint(tmp_path, text.replace('"earlier"', '"empty"'))
    assert "lengths.from_run: found nothing in" in found and "no sample with a token began" in found
    assert "nowhere" in complaint(tmp_path, text.replace('"earlier"', '"nowhere"'))


def test_a_config_of_hugging_face_says_all_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    spelt_out = planned(tmp_path, MINIMAL)
    head, _, tail = MINIMAL.partition("[model]")
    _, _, tail = tail.partition("[lengths]")
    short = f"{head}[model]\nconfig_json = 'config.json'\n[lengths]{tail}"
    assert planned(tmp_path, short).shape == spelt_out.shape
    assert planned(tmp_path, short).training.model == spelt_out.training.model
    halved = short.replace("[lengths]", "bytes_per_weight = 1\n[lengths]")
    assert planned(tmp_path, halved).shape.weight_bytes == 8_030_261_248


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "No such file"),
        ("[]", "a list in"),
        ("{", "Expecting property name"),
        ('{"model_type": "mamba"}', "model_type 'mamba', which is none of"),
    ],
)
def test_a_config_that_can_not_be_counted_is_refused(tmp_path: Path, config: str | None, said: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    message = complaint(tmp_path, MINIMAL.replace("[model]", "[model]\nconfig_json = 'config.json'"))
    assert message.startswith(", model.config_json")
    assert said in message


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("weight_update_s = 4", WeightUpdateCost(4, 0, 0)),
        ("weight_update_s = 4\nblocks_trainer = true", WeightUpdateCost(4, 4, 0)),
        ("weight_update_s = 4\npauses_engines = false", WeightUpdateCost(0, 0, 4)),
        ("weight_update_s = 0", WeightUpdateCost()),
    ],
)
def test_an_update_stops_whom_the_plan_says(tmp_path: Path, written: str, expected: WeightUpdateCost) -> None:
    update = planned_system(planned(tmp_path, f"{MINIMAL}[weights]\n{written}\n"), {}).update
    assert astuple(update) == pytest.approx(astuple(expected))


def test_a_cap_is_kept_in_the_manner_that_is_stated(tmp_path: Path) -> None:
    def kept(manner: str) -> PlanInputs:
        return planned(tmp_path, f"{MINIMAL}[limits]\nmax_staleness = 3\nstaleness_policy = '{manner}'\n")

    by_layout, admission, waits, drop = map(kept, ("by_layout", "admission", "publication_waits", "drop"))
    assert (by_layout.admission.max_staleness, by_layout.most_staleness) == (None, 3)
    assert (admission.admission.max_staleness, admission.most_staleness) == (3, None)
    policies = [each.admission.staleness_policy for each in (admission, waits, drop)]
    assert policies == ["admission", "publication_waits", "drop"]
    assert (drop.admission.max_staleness, drop.most_staleness) == (3, None)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"[gpus\n", "at line 1"), (b"\xff\xfe", "not UTF-8"), (None, "No such file or directory")],
)
def test_what_is_no_plan_at_all_is_said_with_the_way_to_one(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "plan.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RlscopeError, match="rlscope plan --example") as raised:
        read_plan(path)
    assert said in str(raised.value)
