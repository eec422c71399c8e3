"""The command line: each file of this folder is a command, with its options, one sentence of help, and `run`."""

import io
import signal
import sys
from collections.abc import Sequence

from ..errors import InputError, NumericsError
from ..heap import keep_freed_memory
from . import bench, compare, compile, doctor, eval, export, inspect, layers, methods, prune, report, train
from .options import Parser, add_flags
from .values import read_options

COMMANDS = {
    "prune": prune,
    "compare": compare,
    "train": train,
    "report": report,
    "eval": eval,
    "inspect": inspect,
    "export": export,
    "compile": compile,
    "bench": bench,
    "layers": layers,
    "methods": methods,
    "doctor": doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did its work, 1 when `inspect` or `doctor` found a fault, 2 when it did nothing."""
    if arguments is None:  # as a program: being told to end is cleaned up after as Ctrl-C is
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        keep_freed_memory()
        if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without … or × is no reason to fail
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except (InputError, NumericsError) as error:
        return _stop(str(error))
    except KeyboardInterrupt:
        return _stop("stopped before the end; nothing half-written is left.")
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _stop(f"the system refused: {error.strerror or error}{where}.")


def _run(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog="secateur", description="Prune vision models with second-order information.")
    parser.add_argument("--version", action="version", version=f"secateur {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for name, command in COMMANDS.items():
        add_flags(commands.add_parser(name, help=command.HELP, description=command.__doc__), command.Options)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices[parsed.command].refuse(unknown[0])
    command = COMMANDS[parsed.command]
    return command.run(read_options(command.Options, parsed, parsed.command))


def _stop(sentence: str) -> int:
    print(f"secateur: {sentence}", file=sys.stderr)
    return 2


def _version() -> str:
    from .. import __version__

    return __version__
