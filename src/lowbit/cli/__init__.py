"""The command line: ``lowbit quantize``, ``plan``, ``compare``, ``infer``, ``evaluate`` and more.

This file and the parser import nothing heavy, so that ``lowbit --help`` answers at once; each
command's own module is imported when it runs. Errors raised on purpose become one line on stderr;
anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from lowbit.cli.options import make_parser
from lowbit.errors import GateError, LowbitError, RuinedError

WRONG = 2
GATE_FAILED = 3
RUINED = 4
INTERRUPTED = 130
PIPE_CLOSED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 only when all that was asked for is done."""
    _never_fail_to_print()
    parser = make_parser()
    try:
        args = parser.parse(sys.argv[1:] if argv is None else argv)
        if args.completion is not None:
            importlib.import_module("lowbit.cli.commands").print_completion(args.completion)
            return 0
        if args.command is None:
            parser.print_help(sys.stderr)
            return WRONG
        # Heavy, so imported only when a command runs.
        importlib.import_module("lowbit.cli.commands").COMMANDS[args.command](args)
        sys.stdout.flush()
    except LowbitError as error:
        _say(f"error: {error}")
        if isinstance(error, RuinedError):
            return RUINED
        return GATE_FAILED if isinstance(error, GateError) else WRONG
    except KeyboardInterrupt:
        _say("interrupted; nothing was written")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    return 0


def _say(message: str) -> None:
    sys.stderr.write(f"lowbit: {message}\n")


def _never_fail_to_print() -> None:
    """Let a terminal that lacks a character of a tensor's name show its code instead."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Send the rest of stdout nowhere, so that the interpreter's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
