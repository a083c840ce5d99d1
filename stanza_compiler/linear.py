"""A mixed-integer linear program put together from forms."""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

Form = dict[int, float]
"""A linear form: factors by variable; ONE stands for the constant 1."""

ONE = -1


class LinearProgram:
    """Variables with bounds, some of them integers, and forms that must not be negative."""

    def __init__(self) -> None:
        self._bounds: list[tuple[float, float]] = []
        self._integers: set[int] = set()
        self._rows: list[Form] = []

    def variable(self, lower: float, upper: float, *, integer: bool = False) -> int:
        self._bounds.append((lower, upper))
        number = len(self._bounds) - 1
        if integer:
            self._integers.add(number)
        return number

    def require(self, form: Form) -> None:
        """form >= 0."""
        if form.keys() - {ONE} or form.get(ONE, 0.0) < 0:
            self._rows.append(form)

    def most(self, forms: list[Form]) -> Form:
        """The maximum of the forms, which is nowhere below 0; 0 for none."""
        known = max((form.get(ONE, 0.0) for form in forms if not form.keys() - {ONE}), default=0.0)
        unknown = [form for form in forms if form.keys() - {ONE}]
        if not unknown or (len(forms) == 1 and not known):
            return unknown[0] if unknown else {ONE: known}
        maximum = self.variable(known, np.inf)
        for form in unknown:
            self.require(sum_of((1.0, {maximum: 1.0}), (-1.0, form)))
        return {maximum: 1.0}

    def least(self, objective: Form) -> list[float] | None:
        """The values of all variables where `objective` is least, None when the rows leave none."""
        entries = [
            (row, variable, factor)
            for row, form in enumerate(self._rows)
            for variable, factor in form.items()
            if variable != ONE
        ]
        rows, variables, factors = zip(*entries, strict=True)
        lower, upper = zip(*self._bounds, strict=True)
        count = len(self._bounds)
        result = milp(
            np.array([objective.get(variable, 0.0) for variable in range(count)]),
            integrality=np.array([variable in self._integers for variable in range(count)]),
            bounds=Bounds(np.array(lower), np.array(upper)),
            constraints=LinearConstraint(
                csr_array((factors, (rows, variables)), shape=(len(self._rows), count)),
                lb=np.array([-form.get(ONE, 0.0) for form in self._rows]),
            ),
            options={"mip_rel_gap": 0.0},
        )
        return None if result.x is None else [float(value) for value in result.x]


def sum_of(*terms: tuple[float, Form]) -> Form:
    """The sum of factor * form."""
    total: Form = {}
    for scale, form in terms:
        for variable, factor in form.items():
            total[variable] = total.get(variable, 0.0) + scale * factor
    return total
