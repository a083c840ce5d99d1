"""One small model for every rule that a cut must respect."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stanza_compiler.opgraph import Rules
from stanza_compiler.passes.coupling import Coupling
from stanza_compiler.passes.legality import legality
from stanza_compiler.passes.profile import profile
from stanza_compiler.passes.trace import trace
from tests.source_of import source_of


class Calling(nn.Module):
    """A model whose forward is a function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **held: nn.Module | torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def rules_of(model: nn.Module, *inputs: torch.Tensor, coupling: Coupling | None = None) -> Rules:
    source = source_of(model, *inputs)
    traced = trace(source, verify=False)
    return legality(profile(source, traced), traced.root, coupling or Coupling())


def line_of(function: Callable[..., Any]) -> str:
    return f"test_legality.py:{function.__code__.co_firstlineno}"


X = torch.ones(2, 3)


def test_a_plain_chain_has_no_rules() -> None:
    assert rules_of(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3, 3)), X) == Rules()


def test_an_in_place_op_stays_with_the_maker_of_the_tensor_it_writes() -> None:
    rules = rules_of(Calling(lambda self, x: self.fc(x).relu_().cos(), fc=nn.Linear(3, 3)), X)
    assert rules.together == (("fc", "relu_"),)
    assert rules.conv_only == ()
    (note,) = rules.notes
    assert note.startswith(
        "1 in-place ops stay in the segment of the tensor they write (the first is relu_, test_legality.py:"
    )


def test_who_read_the_tensor_before_the_write_stays_with_the_writer_and_later_readers_are_free() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        early = h.tanh()
        return early + h.relu_().cos()

    rules = rules_of(Calling(forward, fc=nn.Linear(3, 3)), X)
    assert rules.together == (("fc", "tanh", "relu_"),)


def test_a_write_to_a_view_is_a_write_to_its_base() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        h.view(-1, 1, 3).mul_(2)
        return h.cos()

    rules = rules_of(Calling(forward, fc=nn.Linear(3, 3)), X)
    assert rules.together == (("fc", "view", "mul_"),)


def test_a_tensor_written_again_and_again_keeps_all_its_writers_and_readers_together() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        early = h.tanh()
        h.add_(early)
        late = h.sin()
        h.mul_(late)
        return h.cos()

    rules = rules_of(Calling(forward, fc=nn.Linear(3, 3)), X)
    # Each group holds the maker; what the first one holds need not stand in the second again.
    assert rules.together == (("fc", "tanh", "add_"), ("fc", "add_", "sin", "mul_"))


def test_a_write_to_an_input_happens_where_the_input_arrives() -> None:
    rules = rules_of(Calling(lambda self, x: self.fc(x.cos() + x.relu_()), fc=nn.Linear(3, 3)), X)
    assert rules.conv_only == ("cos", "relu_")


def test_an_in_place_op_on_a_tensor_of_its_own_is_free() -> None:
    assert rules_of(nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 3)), X) == Rules()


def test_a_tuple_of_tensors_is_taken_apart_where_it_is_made() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        left, right = torch.chunk(x, 3, 1)[0], self.rnn(x)[0]
        return left.cos() + right

    rules = rules_of(Calling(forward, rnn=nn.RNN(3, 3)), X)
    assert rules.together == (("chunk", "getitem"), ("rnn", "getitem_1"))
    assert rules.notes == ()


def test_a_parameter_that_several_ops_use_is_told() -> None:
    rules = rules_of(
        Calling(lambda self, x: self.fc(self.fc(x).relu()) * self.gain, fc=nn.Linear(3, 3), gain=nn.Parameter(X[0])), X
    )
    assert rules.together == ()  # one role holds them, in one segment or two
    assert rules.notes[0].startswith(
        "parameter fc.weight is used by 2 ops, which one role holds unless a plan parts them (fc, test_legality.py:"
    )


def test_a_buffer_that_is_written_keeps_its_readers_together_and_one_that_is_not_is_free() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = x + self.table
        self.seen.add_(1)
        return (h * self.table).relu() + self.seen

    rules = rules_of(Calling(forward, table=torch.ones(3), seen=torch.zeros(3)), X)
    assert rules.together == (("add_", "add_1"),)
    assert rules.notes[-1].startswith("buffer seen is used by 2 ops, which stay together (add_, test_legality.py:")


def test_statistics_that_two_functional_batch_norms_write_keep_them_together() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = F.batch_norm(x, self.mean, self.var, training=True)
        return F.batch_norm(h.relu(), self.mean, self.var, training=True)

    rules = rules_of(Calling(forward, mean=torch.zeros(3), var=torch.ones(3)), X)
    assert set(rules.together) == {("batch_norm", "batch_norm_1")}


def test_random_ops_keep_their_program_order() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Linear(3, 3), nn.Dropout(), nn.Dropout1d(), nn.ReLU())
    assert rules_of(model, X).order == (("0", "2"), ("2", "3"))


def test_the_order_does_not_hold_for_an_eval_model() -> None:
    assert rules_of(nn.Sequential(nn.Dropout(), nn.Linear(3, 3), nn.Dropout()).eval(), X).order == ()


def test_coupled_ops_belong_to_the_one_host_that_sees_the_whole_batch() -> None:
    found = Coupling(ops=("norm",), reason="norm mixes the samples of a batch", notes=("a note",))
    rules = rules_of(Calling(lambda self, x: x / x.norm()), X, coupling=found)
    assert (rules.fc_only, rules.single_host, rules.notes) == (("norm",), found.reason, ("a note",))


def test_what_changes_a_parameter_in_forward_is_noted() -> None:
    table = nn.Embedding(7, 3, max_norm=1.0)
    rules = rules_of(nn.Sequential(table, nn.Flatten(), nn.Linear(12, 2)), torch.zeros(2, 4, dtype=torch.int64))
    (note,) = rules.notes
    assert note.startswith("0")
    assert "changes parameter 0.weight in forward, by the samples that it sees: its copies drift apart" in note


def test_batch_norms_unused_parameters_and_uncounted_ops_are_noted() -> None:
    held: dict[str, nn.Module] = {
        "bn": nn.BatchNorm1d(3),
        "quiet": nn.BatchNorm1d(3, track_running_stats=False),
        "spare": nn.Linear(2, 2),
        "other": nn.Linear(2, 2),
    }

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(self.quiet(self.bn(x))).real

    norms, unused, uncounted = rules_of(Calling(forward, **held), X).notes
    assert norms == "1 BatchNorm layers see the batch of the rank that runs them: its own part, or its block's"
    assert unused == "never used by forward, kept in the checkpoint: spare.weight, spare.bias, other.weight and 1 more"
    line = int(line_of(forward).rpartition(":")[2]) + 1
    assert uncounted.startswith(f"fft_rfft, test_legality.py:{line} computes by _fft_r2c")
    assert uncounted.endswith(", whose FLOPs can't be counted: priced by its bytes alone")


def test_what_depends_on_the_samples_seen_at_once_can_not_be_taken_in_pieces() -> None:
    def counts(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + self.seen.add_(1)

    assert rules_of(nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.LayerNorm(3)), X).uncut == ""
    norm = rules_of(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)), X)
    assert norm.uncut == "BatchNorm1d '1' uses the statistics of what it sees at once"
    written = rules_of(Calling(counts, fc=nn.Linear(3, 3), seen=torch.zeros(())), X).uncut
    assert written.startswith("add_, test_legality.py:")
    assert written.endswith(" writes buffer seen in each forward")
    coupled = rules_of(nn.Linear(3, 3), X, coupling=Coupling(reason="the loss is not a mean over samples"))
    assert coupled.uncut == "the loss is not a mean over samples"
