"""The command `stanza-rehearse`: argv in, exit code out."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stanza_compiler.document_terminal import print_document
from stanza_compiler.errors import StanzaError, UsageError
from stanza_compiler.progress import progress
from stanza_compiler.rehearse.arguments import parse
from stanza_compiler.rehearse.options import Options
from stanza_compiler.rehearse.rehearsal import Rehearsed, rehearse
from stanza_compiler.rehearse.signals import unwinding
from stanza_compiler.rehearse.tables import build_document


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rehearsal; 0 done, 1 something failed, 2 usage, 130 interrupted, 143 terminated."""
    try:
        with unwinding():
            options = parse(argv)
            if options is not None:
                _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # keeps the interpreter's last flush quiet
        return 1
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if interrupt.args else signal.SIGINT
        print(f"error: stanza-rehearse: {signal.Signals(number).name}; run it again", file=sys.stderr)
        return 128 + number
    except Exception as error:
        # --traceback is looked up here because what failed may be the reading of the command line.
        if "--traceback" in (sys.argv if argv is None else argv):
            traceback.print_exc()
        print(f"error: {_told(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def _told(error: Exception) -> StanzaError:
    if isinstance(error, StanzaError):
        return error
    what = f"internal error, {type(error).__name__}: {error}"
    return StanzaError("stanza-rehearse", what, "this is a bug of ours, please report it with --traceback")


def _run(options: Options) -> None:
    """Rehearse; tables or JSON go to stdout, everything else to stderr."""
    with progress("reading the plan") as show:
        rehearsed = rehearse(options, show=show)
    if options.as_json:
        print(json.dumps(_entry(options, rehearsed), indent=2))
    else:
        print_document(build_document(options, rehearsed), Console())


def _entry(options: Options, rehearsed: Rehearsed) -> dict[str, Any]:
    asked = asdict(options)
    asked["emitted"] = options.emitted.name
    asked["beside"] = [each.folder.name for each in options.beside]
    return {"options": asked, **asdict(rehearsed)}
