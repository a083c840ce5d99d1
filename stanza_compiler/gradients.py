"""How much of a model's gradients is sent and updated: of sparse tables the rows that a batch looks up."""

from dataclasses import dataclass

from stanza_compiler.codecs import WIDE
from stanza_compiler.cuts import parameter_users
from stanza_compiler.opgraph import OpGraph

# A row of a sparse gradient travels with its number, an int64.
INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Table:
    """A parameter whose gradient is sparse: of `rows` rows a sample looks up `lookups`, which may repeat."""

    rows: int
    row_bytes: float
    lookups: float

    def touched(self, samples: float) -> float:
        """The most rows that `samples` samples can reach."""
        return min(self.lookups * samples, self.rows)


@dataclass(frozen=True, slots=True)
class Gradient:
    """What is complete when an op's backward ends: bytes of dense gradients, and sparse ones.

    `saved_bytes` are those that dense ones lose in 16 bits.

    >>> Gradient(tables=(Table(rows=100, row_bytes=8, lookups=3),)).ring_bytes(ranks=4, samples=5)
    480.0
    """

    dense_bytes: int = 0
    tables: tuple[Table, ...] = ()
    saved_bytes: int = 0

    def rows_bytes(self, samples: float) -> float:
        """Bytes that a rank with `samples` samples has: dense gradients, and of tables its rows with their numbers."""
        return self.dense_bytes + sum(table.touched(samples) * (table.row_bytes + INDEX_BYTES) for table in self.tables)

    def ring_bytes(self, ranks: int, samples: float, *, halved: bool = False) -> float:
        """Bytes of a dense gradient whose ring allreduce takes as long and sends as much.

        Sparse gradients are gathered: rows of R bytes go to n - 1 others, as 2(n-1)/n of n/2 R bytes do in a ring.
        Dense ones may be `halved`, sent in 16 bits.
        """
        dense_bytes = self.dense_bytes - self.saved_bytes * halved
        return dense_bytes + ranks / 2 * (self.rows_bytes(samples) - self.dense_bytes)

    def updated_bytes(self, ranks: int, samples: float) -> float:
        """Bytes of the parameters that the sum over `ranks` changes."""
        return self.dense_bytes + sum(table.touched(ranks * samples) * table.row_bytes for table in self.tables)

    @property
    def is_empty(self) -> bool:
        return not (self.dense_bytes or self.tables)


def gradients(graph: OpGraph) -> dict[str, Gradient]:
    """By op: a shared parameter's gradient is complete after its first user, the last to go backward."""
    complete: dict[str, Gradient] = {}
    users = parameter_users(graph)
    for name, own in parameter_gradients(graph).items():
        known = complete.get(users[name][0], Gradient())
        complete[users[name][0]] = Gradient(
            known.dense_bytes + own.dense_bytes,
            (*known.tables, *own.tables),
            known.saved_bytes + own.saved_bytes,
        )
    return complete


def parameter_gradients(graph: OpGraph) -> dict[str, Gradient]:
    """By trained parameter that some op uses.

    A gradient is sparse when that of every user is; a table that two ops look up in has the lookups of both.
    """
    found: dict[str, Gradient] = {}
    for name, users in parameter_users(graph).items():
        parameter = graph.parameter[name]
        lookups = [graph.op[user].sparse_lookups for user in users]
        if not parameter.trainable:
            continue
        if all(lookups) and parameter.bytes:
            rows = parameter.shape[0]
            found[name] = Gradient(0, (Table(rows, parameter.bytes / rows, sum(lookups)),))
        else:
            saved_bytes = parameter.bytes - 2 * parameter.elements if parameter.dtype in WIDE else 0
            found[name] = Gradient(parameter.bytes, saved_bytes=saved_bytes)
    return found
