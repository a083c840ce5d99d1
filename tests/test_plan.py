"""plan.json: what it says and what reading an edited one takes from it."""

import json

import pytest

from stanza_compiler.allocations import world_size
from stanza_compiler.cluster import Cluster
from stanza_compiler.codecs import Codecs
from stanza_compiler.errors import UsageError
from stanza_compiler.plan import STRATEGIES, TERMS, Allocation, Prediction, Request, read_request, to_json
from tests.small_plan import PLAN


def test_plan_json_has_the_names_that_others_rely_on() -> None:
    entry = json.loads(to_json(PLAN))
    assert {
        "schema_version", "source", "model_hash", "front_end", "requires", "batch_size", "cluster", "verdict",
        "reason", "totals", "stages", "boundary", "allocation", "predictions", "break_even", "alternatives", "notes",
        "certificate", "boundary_dtype", "gradient_codec", "bucket_bytes",
    } <= set(entry)  # fmt: skip
    assert set(entry["totals"]) == {"parameter_bytes", "forward_flops", "constant_flops", "ops"}
    assert set(entry["allocation"]) == {"conv_workers", "fc_workers", "placement", "world_size"}
    assert tuple(entry["predictions"]) == STRATEGIES
    assert set(entry["break_even"]) == {"bandwidth_bit_per_s"}
    for stage in entry["stages"]:
        assert set(stage) == {"role", "segments", "ops", "parameters", "parameter_bytes", "forward_flops"}
    for boundary in entry["boundary"]:
        assert set(boundary) == {
            "name", "shape", "dtype", "kind", "batch_axis", "bytes_per_sample", "requires_grad",
            "from_segment", "to_segment", "codec_error", "gradient_codec_error",
        }  # fmt: skip
    priced = [prediction for prediction in entry["predictions"].values() if prediction]
    for prediction in priced:
        assert tuple(prediction["terms"]) == TERMS
        assert set(prediction) == {
            "iteration_s", "samples_per_step", "samples_per_s", "bytes_per_step", "bytes_per_sample",
            "allocation", "terms",
        }  # fmt: skip


def test_a_prediction_is_the_sum_of_its_terms() -> None:
    prediction = Prediction(Allocation(3, 1, "dedicated"), 12, 600.0, dict(zip(TERMS, range(9), strict=True)))
    assert prediction.iteration_s == 36
    assert prediction.samples_per_s == pytest.approx(12 / 36)
    assert prediction.bytes_per_sample == 50


@pytest.mark.parametrize(("placement", "world"), [("dedicated", 4), ("colocated", 3)])
def test_hosts_of_their_own_count_in_the_world(placement: str, world: int) -> None:
    assert Allocation(3, 1, placement).world_size == world


def test_an_edited_plan_is_a_request() -> None:
    entry = json.loads(to_json(PLAN))
    request = read_request(json.dumps(entry), "--plan plan.json", Request(batch_size=7))
    fc = next(stage for stage in entry["stages"] if stage["role"] == "fc")
    assert request.fc_ops == tuple(fc["segments"][0])
    assert request.placement == entry["allocation"]["placement"]
    assert (request.conv_workers, request.fc_workers) == (
        entry["allocation"]["conv_workers"],
        entry["allocation"]["fc_workers"],
    )
    assert request.batch_size == 7


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 99}', '{"schema_version": 1, "stages": 3}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="plan"):
        read_request(text, "--plan p.json", Request())


def test_what_is_given_beside_a_plan_replaces_that_alone() -> None:
    entry = json.loads(to_json(PLAN)) | {"boundary_dtype": "bf16", "gradient_codec": "fp16", "micro_batches": 2}
    plain = Request(micro_batches=1)
    kept = read_request(json.dumps(entry), "--plan p.json", plain)
    assert (kept.codecs, kept.micro_batches) == (Codecs("bf16", "fp16"), 2)
    replaced = read_request(json.dumps(entry), "--plan p.json", plain, ("boundary_dtype", "micro_batches"))
    assert (replaced.codecs, replaced.micro_batches) == (Codecs("fp32", "fp16"), 1)


def test_a_data_parallel_plan_keeps_its_number_of_ranks() -> None:
    entry = json.loads(to_json(PLAN)) | {"verdict": "data-parallel"}
    entry["allocation"] = {"conv_workers": 7, "fc_workers": 0, "placement": "data-parallel"}
    request = read_request(json.dumps(entry), "--plan p.json", Request())
    assert (request.strategy, world_size(request, Cluster(nodes=3, bandwidth_bit_per_s=1e9, latency_s=0.0))) == (
        "data-parallel",
        7,
    )
