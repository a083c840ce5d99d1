"""The command `stanza-compile`: argv in, exit code out."""

import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout

from stanza_compiler.arguments import PASSES, Invocation, parse
from stanza_compiler.errors import StanzaError, UsageError
from stanza_compiler.interrupt import Interrupt
from stanza_compiler.opgraph import OpGraph
from stanza_compiler.plan import Plan, to_json
from stanza_compiler.progress import progress
from stanza_compiler.report import build_report

NEXT_PASS = dict(zip(PASSES, (*PASSES[1:], "done"), strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one compile; 0 done, 1 the model or request can't be compiled, 2 usage, 130 interrupted."""
    interrupt = Interrupt()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of modules may be any text, the terminal ASCII
    try:
        invocation = parse(argv)
        if invocation is not None:
            with interrupt:
                _run(invocation, interrupt)
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # keeps the interpreter's last flush quiet
        return 1
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if interrupt.seen:  # a half-imported module may answer Ctrl-C with an error of its own
            return _interrupted()
        # --traceback is looked up here because what failed may be the reading of the command line.
        if "--traceback" in (sys.argv if argv is None else argv):
            traceback.print_exc()
        print(f"error: {_told(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def _interrupted() -> int:
    print("error: stanza-compile: interrupted; run it again", file=sys.stderr)
    return 130


def _told(error: Exception) -> StanzaError:
    if isinstance(error, StanzaError):
        return error
    what = f"internal error, {type(error).__name__}: {error}"
    return StanzaError("stanza-compile", what, "this is a bug of ours, please report it with --traceback")


def _run(invocation: Invocation, interrupt: Interrupt) -> None:
    """Compile; plan.json, the report or the dump goes to stdout, everything else to stderr."""
    # Imported here: torch takes seconds, which a mistake on the command line should not cost. Its objects live as long
    # as the process; looking through them for garbage would cost another tenth.
    gc.disable()
    try:
        with interrupt.held_back():
            from stanza_compiler.compiler import compile_source
    finally:
        gc.freeze()
        gc.enable()

    options, stdout = invocation.options, sys.stdout

    # What the user's file prints must not end up in plan.json.
    with progress(PASSES[0]) as show, redirect_stdout(sys.stderr):

        def on_pass(name: str, result: object, seconds: float) -> None:
            interrupt.check()
            show(NEXT_PASS[name])
            if name == options.dump:
                print(result, file=stdout)

        compilation = compile_source(options, on_pass=on_pass)
    plan = compilation.plan
    if invocation.as_json:
        print(to_json(plan), end="")
        for note in plan.notes:
            print(f"note: {note}", file=sys.stderr)
    elif options.dump is None:
        _print_report(plan, compilation.graph)
    if compilation.out is not None:
        run = f"torchrun --nproc-per-node {plan.allocation.world_size} {compilation.out / 'train.py'}"
        print(f"wrote {compilation.out}, train it with: {run}", file=sys.stderr)


def _print_report(plan: Plan, graph: OpGraph) -> None:
    # Imported here: --json and --dump need no rich.
    from rich.console import Console

    from stanza_compiler.document_terminal import print_document

    print_document(build_report(plan, graph, brief=True), Console())
