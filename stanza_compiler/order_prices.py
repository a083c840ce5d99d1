"""What every order of segments would take, and why it isn't the one chosen."""

from collections.abc import Sequence

from stanza_compiler.front import ORDERS, FrontSpace, Order
from stanza_compiler.plan import OrderPrice, Prediction
from stanza_compiler.search import Candidate, best, search_front
from stanza_compiler.verdict import largest_loss

# Groups of ops that may stand in front or behind, above which a losing order is not solved for its price alone.
MOST_GROUPS = 400


def order_prices(
    found: Sequence[Candidate], winner: Candidate, chosen: Prediction, fronts: FrontSpace, why_no_cut: str
) -> tuple[OrderPrice, ...]:
    """conv-fc, fc-conv and fc-conv-fc, each at its best among `found` or else on the ranks of the `winner`.

    Each is compared with `chosen`, which is the winner's price, or data-parallel's.
    """
    if not fronts.front & fronts.heavy:
        return ()
    prices = [_conv_fc(found, winner, chosen, why_no_cut)]
    return (*prices, *(_with_front(order, found, winner, chosen, fronts) for order in ORDERS))


def _conv_fc(found: Sequence[Candidate], winner: Candidate, chosen: Prediction, why_no_cut: str) -> OrderPrice:
    plans = [candidate for candidate in found if not candidate.front]
    if not plans:
        return OrderPrice("conv-fc", None, None, None, why_no_cut or "no such cut leaves the compute-heavy ops to CONV")
    return _priced("conv-fc", best(plans), winner, chosen)


def _with_front(
    order: Order, found: Sequence[Candidate], winner: Candidate, chosen: Prediction, fronts: FrontSpace
) -> OrderPrice:
    if why := fronts.why_not(order):
        return OrderPrice(order, None, None, None, why)
    plans = [each for each in found if each.front and (each.front == each.fc_ops) == (order == "fc-conv")]
    if not plans and (fronts.front | fronts.back).bit_count() <= MOST_GROUPS:
        plans = list(search_front([winner.costs], fronts, (), orders=(order,)))
    if not plans:
        return OrderPrice(order, None, None, None, f"none takes less than {chosen.iteration_s * 1e3:.1f} ms")
    return _priced(order, best(plans), winner, chosen)


def _priced(order: str, plan: Candidate, winner: Candidate, chosen: Prediction) -> OrderPrice:
    prediction = plan.prediction
    why = "chosen" if prediction is chosen else largest_loss(prediction, chosen)
    if plan is winner and prediction is not chosen:
        why = f"the best separation; {why}"
    return OrderPrice(order, prediction.allocation, prediction.iteration_s, prediction.samples_per_s, why)
