import re
import subprocess
import sys
from dataclasses import dataclass, fields

import pytest

from secateur.cli import COMMANDS
from secateur.cli.options import Parser, add_flags, option
from secateur.cli.values import read_options, read_yaml
from secateur.errors import InputError


@dataclass
class Shared:
    """shared things"""

    count: int = option(4, "how many", least=1)
    share: float | None = option(None, "a part of 100 %", least=0, most=1)


@dataclass
class Options(Shared):
    place: str = option(..., "where", positional=True)
    out: str = option(..., "folder", metavar="FOLDER")
    kind: str = option("plain", "which kind", choices=("plain", "odd"))
    numbers: list[float] = option([0.5, 1.0], "some numbers")  # noqa: RUF009
    words: list[str] = option([], "some words")  # noqa: RUF009
    mixed: list[float | str] = option([0.5], "numbers and words")  # noqa: RUF009
    good: bool = option(True, "be good")
    quick_work: bool = option(False, "be quick")
    seed: int = option(0, "chooses")


def read(*arguments):
    parser = Parser(prog="secateur try")
    add_flags(parser, Options)
    return read_options(Options, parser.parse_args([str(a) for a in arguments]), "try")


def read_file(tmp_path, text, *arguments):
    (tmp_path / "options.yaml").write_text(text)
    return read("--config", tmp_path / "options.yaml", *arguments)


def test_what_is_not_given_keeps_its_default():
    options = read("here", "--out", "o")
    assert options == Options(place="here", out="o")
    assert (options.count, options.share, options.numbers, options.words) == (4, None, [0.5, 1.0], [])
    options.numbers.append(2.0)
    assert read("here", "--out", "o").numbers == [0.5, 1.0]


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["--count", "7"], "count", 7),
        (["--share", "1e-3"], "share", 0.001),
        (["--kind", "odd"], "kind", "odd"),
        (["--numbers", "1", "0.25"], "numbers", [1.0, 0.25]),
        (["--words", "!a*", "re:b"], "words", ["!a*", "re:b"]),
        (["--mixed", "1e-3", "2:4", "nan?"], "mixed", [0.001, "2:4", "nan?"]),
        (["--no-good"], "good", False),
        (["--quick-work"], "quick_work", True),
    ],
)
def test_a_flag_sets_its_field(flags, name, value):
    assert getattr(read("here", "--out", "o", *flags), name) == value
    assert getattr(read("--out", "o", *flags, "--", "here"), name) == value


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("count: 7", "count", 7),
        ("share: 1e-3", "share", 0.001),  # which YAML takes for text
        ("share: 1", "share", 1.0),
        ("share: null", "share", None),
        ("numbers: 0.25", "numbers", [0.25]),
        ("numbers: [1, 0.25]", "numbers", [1.0, 0.25]),
        ("words: ['!a*', 're:b']", "words", ["!a*", "re:b"]),
        ("mixed: [1, 1e-3, 2:4, '4:8']", "mixed", [1.0, 0.001, "2:4", "4:8"]),
        ("mixed: 2:4", "mixed", ["2:4"]),  # which YAML takes for 124
        ("good: no", "good", False),
        ("quick-work: true", "quick_work", True),
        ("quick_work: true", "quick_work", True),
    ],
)
def test_a_line_of_yaml_sets_its_field(tmp_path, line, name, value):
    found = getattr(read_file(tmp_path, f"place: here\nout: o\n{line}"), name)
    assert found == value and type(found) is type(value)


def test_flags_override_the_file(tmp_path):
    options = read_file(tmp_path, "place: there\nout: o\ncount: 7\ngood: false", "here", "--count", "8", "--good")
    assert (options.place, options.out, options.count, options.good) == ("here", "o", 8, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("samples: 7", r"sets 'samples', which `secateur try` does not have\."),
        ("counts: 7", r"sets 'counts', .* Did you mean count or out\?"),
        ("count: 7.5", r"count in .*options\.yaml is 7\.5; it must be a whole number\."),
        ("count: true", r"count in .* is True; it must be a whole number\."),
        ("share: half", r"share in .* is 'half'; it must be a number\."),
        ("share: yes", r"share in .* is True; it must be a number\."),
        ("out: 5", r"out in .* is 5; it must be text\."),
        ("good: 1", r"good in .* is 1; it must be true or false\."),
        ("out: null", r"out in .* is None; it must be text\."),
        ("numbers: []", r"numbers in .* is empty; give at least one value"),
        ("numbers: [1, x]", r"numbers in .* is 'x'; it must be a number\."),
        ("numbers: [1, 2:4]", r"numbers in .* is '2:4'; it must be a number\."),
        ("mixed: [yes]", r"mixed in .* is True; it must be a number or text\."),
        ("mixed: [[1]]", r"mixed in .* is \[1\]; it must be a number or text\."),
        ("place: here\nout: o\nkind: even", r"--kind is 'even'; give plain or odd\."),
        ("- count", r"holds no `option: value` lines\."),
        ("", r"holds no `option: value` lines\."),
        ("count: [", r"The configuration .*options\.yaml cannot be read: while parsing"),
        ("count: \xff\x00", r"cannot be read"),
        ("place: here", r"`secateur try` needs --out: folder\."),
        ("out: o", r"`secateur try` needs PLACE: where\."),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_file(tmp_path, text)


def test_yaml_numbers_stay_numbers_but_none_are_of_base_60(tmp_path):
    (tmp_path / "table.yaml").write_text("a: 2:4\nb: 190:20:30.15\nc: 0.5\nd: 1\ne: 1.0e-3\n'f:g': 1_000\n")
    values = {"a": "2:4", "b": "190:20:30.15", "c": 0.5, "d": 1, "e": 0.001, "f:g": 1000}
    assert read_yaml(tmp_path / "table.yaml", "table") == values


@pytest.mark.parametrize("what", ["missing.yaml", "", "nul\0"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path, what):
    with pytest.raises(InputError, match=r"The table .* cannot be read: "):
        read_yaml(tmp_path / what, "table")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--count", "0"], r"--count is 0; give 1 or more\."),
        (["--share", "1.5"], r"--share is 1\.5; give a number from 0 to 1\."),
        (["--share", "-1"], r"--share is -1\.0; give a number from 0 to 1\."),
        (["--share", "nan"], r"--share is nan; give a number from 0 to 1\."),
    ],
)
def test_a_value_out_of_bounds_is_refused(flags, message):
    with pytest.raises(InputError, match=message):
        read("here", "--out", "o", *flags)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prune", "--sparsty", "0.5"], r"secateur prune: there is no option --sparsty\. Did you mean --sparsity\? `s"),
        (["prune", "--sample=5"], r"there is no option --sample\. Did you mean --samples\?"),
        (["prune", "--xyzzy"], r"there is no option --xyzzy\. `secateur prune --help` lists what it takes\."),
        (["inspect", "--folder", "a"], r"secateur inspect: FOLDER stands by itself, without --folder\. "),
        (["inspect", "a", "b"], r"secateur inspect: there is no place for 'b'\. "),
        (["prune", "--samples", "many"], r"argument --samples: invalid int value: 'many'\. "),
        (["prune", "--allocation", "globl"], r"argument --allocation: invalid choice: 'globl' \(choose from "),
        (["prune", "--sparsity"], r"argument --sparsity: expected at least one argument\."),
        (["prun"], r"secateur: argument COMMAND: invalid choice: 'prun' \(choose from '?prune"),
        ([], r"the following arguments are required: COMMAND\. `secateur --help` lists"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(call, arguments, message):
    found = call(*arguments)
    assert found.code == 2 and found.out == "" and found.err.count("\n") == 1
    assert re.search(message, found.err)


def test_the_help_groups_what_commands_share(capsys):
    parser = Parser(prog="secateur try")
    add_flags(parser, Options)
    parser.print_help()
    words = capsys.readouterr().out
    assert words.startswith("usage: secateur try PLACE --out FOLDER [options]\n")
    own, shared = words.split("shared things:")
    assert "--numbers NUMBER [NUMBER ...]" in own and "some numbers (default: 0.5 1.0)" in own
    assert re.search(r"--seed N +chooses \(default: 0\)\n", own)
    assert "--good, --no-good" in own and "be good (default: yes)" in own and "be quick\n" in own
    assert "--count N" in shared and "how many (default: 4)" in shared and "a part of 100 %" in shared


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_mentions_every_option_once(call, command):
    found = call(command, "--help")
    flags = re.findall(r"^  (?:-h, )?(--[a-z0-9-]+|[A-Z]+\b)", found.out, re.MULTILINE)
    own = list(fields(COMMANDS[command].Options))
    wanted = [i.name.upper() if i.metadata["positional"] else f"--{i.name.replace('_', '-')}" for i in own]
    assert found.code == 0 and sorted(flags) == sorted([*wanted, "--config", "--help"])
    assert COMMANDS[command].__doc__.splitlines()[0] in found.out and all(i.metadata["help"] for i in own)


def test_the_overall_help_lists_the_commands(call):
    found = call("--help")
    assert all(f"  {name} " in found.out and command.HELP in found.out for name, command in COMMANDS.items())
    assert re.fullmatch(r"secateur \d+\.\d+\.\d+\n", call("--version").out)


def test_help_waits_neither_for_torch_nor_for_timm():
    script = (
        "import sys; from secateur.cli import main\n"
        "try: main(['compare', '--help'])\n"
        "except SystemExit: print({'torch', 'timm', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("set()\n") and found.stderr == ""
