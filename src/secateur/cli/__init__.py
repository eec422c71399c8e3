"""The command line: each file of this folder is a command, with its options, one sentence of help, and `run`."""

import argparse
import os
import sys
from collections.abc import Sequence

from ..errors import InputError, NumericsError
from . import compare, doctor, eval, inspect, layers, methods, prune
from .options import Parser, add_flags, read_options

COMMANDS = {
    "prune": prune,
    "compare": compare,
    "eval": eval,
    "inspect": inspect,
    "layers": layers,
    "methods": methods,
    "doctor": doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did its work, 1 when `inspect` or `doctor` found a fault, 2 when it did nothing."""
    parser = Parser(prog="secateur", description="Prune vision models with second-order information.")
    parser.add_argument("--version", action="version", version=f"secateur {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        formatter = argparse.RawDescriptionHelpFormatter
        one = commands.add_parser(name, help=command.HELP, description=command.__doc__, formatter_class=formatter)
        add_flags(one, command.Options)
    parsed = parser.parse_args(arguments)
    command = COMMANDS[parsed.command]
    try:
        return command.run(read_options(command.Options, parsed, parsed.command))
    except (InputError, NumericsError) as error:
        return _stop(str(error))
    except KeyboardInterrupt:
        return _stop("stopped before the end; nothing half-written is left.")
    except BrokenPipeError:  # the reader of standard output has gone: what it has read is all it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _stop(sentence: str) -> int:
    print(f"secateur: {sentence}", file=sys.stderr)
    return 2


def _version() -> str:
    from .. import __version__

    return __version__
