"""Expected values by hand."""

import pytest

from stanza_compiler.cluster import Cluster
from stanza_compiler.plan import Allocation
from stanza_compiler.rehearse.predict import FRAME_PAYLOAD, predict
from stanza_compiler.rehearse.summary import Spread, Summary

PLAN = {
    "stages": [{"role": "conv", "segments": [["a"]]}, {"role": "fc", "segments": [["b"]]}],
    "boundary": [{"to_segment": 1, "kind": "batched", "bytes_per_sample": 100.0, "requires_grad": True}],
}
# 1,000 bytes of payload a second
LINKS = Cluster(nodes=2, bandwidth_bit_per_s=8_000 / FRAME_PAYLOAD, latency_s=0.0)


def _alone(payload_bytes: float) -> Summary:
    second = Spread(1.0, 1.0, 1.0, 1.0, 1.0)
    terms = {"fc_forward_s": 0.2, "fc_backward_s": 0.4}
    return Summary(3, second, 4.0, (0.0, 0.0), (0.0, 0.0), 1.0, 0.5, terms, payload_bytes)


def test_sharded_hosts_hear_every_rank_and_each_other() -> None:
    # up 300 B from rank 0 to 1 and 100 B back, down the same the other way: 800 B; of 2,800 B that the program counts
    # 2,000 are left to the exchange, half forward, half backward, 500 B each way
    found = predict(PLAN, Allocation(2, 2, "sharded"), LINKS, (3, 1), alone=_alone(2_800.0), events=[[[]], [[]]])
    assert found.terms == pytest.approx(
        {"up_s": 0.3, "fc_forward_s": 0.7, "fc_backward_s": 0.9, "down_s": 0.3, "conv_backward_s": 0.0}
    )
    assert found.step_s == pytest.approx(1.0 + 0.3 + 0.5 + 0.5 + 0.3)
    assert found.sent_bytes == found.received_bytes == pytest.approx((1_400.0, 1_400.0))


def test_a_colocated_host_hears_the_others_and_their_targets() -> None:
    # rank 1's sample: 100 B up and 100 B down, and what is left of 240 B is its targets
    found = predict(PLAN, Allocation(2, 1, "colocated"), LINKS, (3, 1), alone=_alone(240.0), events=[[[]], [[]]])
    assert found.terms == pytest.approx(
        {"up_s": 0.14, "fc_forward_s": 0.2, "fc_backward_s": 0.4, "down_s": 0.1, "conv_backward_s": 0.0}
    )
    assert found.step_s == pytest.approx(1.24)
    assert found.sent_bytes == pytest.approx((100.0, 140.0))
