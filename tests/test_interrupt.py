"""Ctrl-C is kept even where a library swallows it."""

import signal

import pytest

from stanza_compiler.interrupt import Interrupt


def swallow_one() -> None:
    """What a library does that catches everything."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_swallowed_interrupt_is_raised_at_the_next_check() -> None:
    with Interrupt() as interrupt:
        interrupt.check()
        swallow_one()
        assert interrupt.seen
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_an_interrupt_that_is_held_back_is_raised_at_the_end() -> None:
    reached = []

    def import_something(interrupt: Interrupt) -> None:
        with interrupt.held_back():
            signal.raise_signal(signal.SIGINT)
            reached.append("the line after")

    with Interrupt() as interrupt, pytest.raises(KeyboardInterrupt):
        import_something(interrupt)
    assert reached == ["the line after"]


def test_the_handler_before_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
