"""The command line: ``lowbit quantize``, ``plan``, ``compare``, ``infer``, ``evaluate`` and more.

This file and the parser import nothing heavy, so that ``lowbit --help`` answers at once; each
command's own module is imported when it runs. Errors raised on purpose, and what the system cannot
do, become one line on stderr; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from lowbit.cli.options import make_parser
from lowbit.cli.process import TerminatedError, checked_output, drop_output, own_process, say
from lowbit.errors import GateError, GoalMissedError, LowbitError, RuinedError, visible

PIPE_CLOSED = 1
WRONG = 2
GATE_FAILED = 3
RUINED = 4
GOAL_MISSED = 5
INTERRUPTED = 130
TERMINATED = 143

_CODES = ((RuinedError, RUINED), (GoalMissedError, GOAL_MISSED), (GateError, GATE_FAILED))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 only when all that was asked for is done.

    Without ``argv`` the process is the command's own: its arguments, its streams and its signals.
    """
    if argv is not None:
        return _run(argv)
    try:
        with own_process():
            return _run(sys.argv[1:])
    except (KeyboardInterrupt, TerminatedError) as error:  # before or after the command itself
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else TERMINATED


def _run(argv: Sequence[str]) -> int:
    try:
        with checked_output():
            return _command(argv)
    except LowbitError as error:
        say(f"error: {visible(str(error))}")
        return next((code for kind, code in _CODES if isinstance(error, kind)), WRONG)
    except KeyboardInterrupt as error:  # with what was written after all, if anything was
        say(f"interrupted; nothing was written{error}")
        return INTERRUPTED
    except TerminatedError as error:
        say(f"terminated; nothing was written{error}")
        return TERMINATED
    except BrokenPipeError:
        drop_output()
        return PIPE_CLOSED
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        say(f"error: {visible(f'{where}{error.strerror or error}')}")
        return WRONG
    except MemoryError as error:
        why = visible(str(error)) or "the system has no more"
        say(f"error: out of memory ({why}); take fewer samples (--limit), or a larger machine")
        return WRONG


def _command(argv: Sequence[str]) -> int:
    parser = make_parser()
    args = parser.parse(argv)
    if args.completion is not None:
        importlib.import_module("lowbit.cli.commands").print_completion(args.completion)
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return WRONG
    # Heavy, so imported only when a command runs.
    importlib.import_module("lowbit.cli.commands").find_command(args.command)(args)
    return 0
