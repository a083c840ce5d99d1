"""What worker counts mean, and which don't fit."""

import pytest

from stanza_compiler.allocations import allocations, sharded_hosts, world_size
from stanza_compiler.cluster import Cluster
from stanza_compiler.errors import PlanError
from stanza_compiler.opgraph import Rules
from stanza_compiler.plan import Allocation, Request


def test_all_ranks_are_used_in_every_way() -> None:
    assert allocations("m", Rules(), Request(), 3) == (
        Allocation(2, 1, "dedicated"),
        Allocation(3, 1, "colocated"),
        Allocation(3, 2, "colocated"),
        Allocation(3, 3, "colocated"),
    )


@pytest.mark.parametrize(
    ("request_", "ranks"),
    [
        (Request(), 4),
        (Request(conv_workers=9, fc_workers=1), 10),
        (Request(conv_workers=9, fc_workers=1, placement="dedicated"), 10),
        (Request(conv_workers=9, fc_workers=2, placement="colocated"), 9),
        (Request(conv_workers=4, fc_workers=2), 4),
        (Request(conv_workers=3), 4),
        (Request(conv_workers=6), 6),
        (Request(fc_workers=2), 4),
    ],
)
def test_worker_counts_override_the_nodes(request_: Request, ranks: int) -> None:
    assert world_size(request_, Cluster(nodes=4)) == ranks


def test_a_count_leaves_the_other_to_the_world() -> None:
    assert allocations("m", Rules(), Request(conv_workers=3), 4) == (Allocation(3, 1, "dedicated"),)
    assert allocations("m", Rules(), Request(fc_workers=2, placement="colocated"), 4) == (
        Allocation(4, 2, "colocated"),
    )


def test_coupled_samples_leave_one_host() -> None:
    rules = Rules(single_host="the loss compares samples")
    assert {each.fc_workers for each in allocations("m", rules, Request(), 4)} == {1}
    with pytest.raises(
        PlanError, match="one FC host must see the whole batch: the loss compares samples; pass --fc-work"
    ):
        allocations("m", rules, Request(fc_workers=2), 4)


def test_nothing_fits_one_dedicated_rank_and_that_is_no_error_unless_asked_for() -> None:
    assert allocations("m", Rules(), Request(placement="dedicated"), 1) == ()
    with pytest.raises(PlanError, match="m: separate roles do not fit 1 rank dedicated; pass"):
        allocations("m", Rules(), Request(strategy="separate", placement="dedicated"), 1)


@pytest.mark.parametrize(
    "request_",
    [
        Request(fc_workers=5),
        Request(conv_workers=4, placement="dedicated"),
        Request(fc_workers=4, placement="dedicated"),
        Request(conv_workers=2, fc_workers=3, placement="colocated"),
        Request(fc_workers=0),
        Request(conv_workers=-1, fc_workers=1),
    ],
)
def test_counts_that_do_not_fit_are_refused(request_: Request) -> None:
    with pytest.raises(PlanError, match="do not fit"):
        allocations("m", Rules(), request_, world_size(request_, Cluster(nodes=4)))


def test_sharded_hosts_are_several_of_the_conv_ranks_unless_one_is_asked_for() -> None:
    assert allocations("m", Rules(), Request(placement="sharded"), 4) == ()
    assert list(sharded_hosts("m", Request(), 4, 1000)) == [2, 3, 4]
    assert list(sharded_hosts("m", Request(), 4, 3)) == [2, 3]
    assert list(sharded_hosts("m", Request(placement="sharded", fc_workers=1), 4, 1000)) == [1]
    assert list(sharded_hosts("m", Request(placement="dedicated"), 4, 1000)) == []
    assert list(sharded_hosts("m", Request(conv_workers=3), 4, 1000)) == []
    assert world_size(Request(placement="sharded", conv_workers=9, fc_workers=2), Cluster(nodes=4)) == 9
