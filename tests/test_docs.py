"""What the documents say is so: links, command lines, names in Python, files, and who imports whom."""

import ast
import doctest
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import secateur
from secateur.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "secateur"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def document(path):
    return pytest.param(path, id=str(path.relative_to(ROOT)))


def code_blocks(text, *languages):
    """The text of the fenced blocks in these languages, continued lines joined."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [body.replace("\\\n", " ") for language, body in blocks if language in languages]


def command_lines():
    """Every `secateur COMMAND …` of a shell block or a --help, without prompt, comment and what is piped after it."""
    helps = {path: ast.get_docstring(ast.parse(path.read_text())) for path in sorted((PACKAGE / "cli").glob("*.py"))}
    blocks = {path: code_blocks(path.read_text(), "", "sh", "bash", "shell", "console", "text") for path in DOCUMENTS}
    for path, texts in {**blocks, **{path: [text or ""] for path, text in helps.items()}}.items():
        for block in texts:
            for line in block.splitlines():
                found = re.match(r"\s*\$?\s*(?:\S*/)?secateur (\w.*)", line)
                if found:
                    lexer = shlex.shlex(found[1], posix=True, punctuation_chars=True)
                    lexer.whitespace_split, words = True, list(lexer)
                    end = next((i for i, word in enumerate(words) if set(word) <= set("();<>|&")), len(words))
                    yield pytest.param(words[:end], id=f"{path.name}: {' '.join(words[:end])}")


def anchors(text):
    """The names GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [document(path) for path in DOCUMENTS])
def test_relative_links_lead_somewhere(path):
    text = path.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    for link in links:
        if re.match(r"\w+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = path.parent / target if target else path
        assert found.exists(), link
        assert not anchor or anchor in anchors(found.read_text()), link


@pytest.mark.parametrize("words", list(command_lines()))
def test_a_command_line_shown_is_one_the_parser_takes(words, monkeypatch, capsys):
    for command in COMMANDS.values():
        monkeypatch.setattr(command, "run", lambda options: 0)
    if "--config" in words:  # the file is the reader's
        at = words.index("--config")
        words = words[:at] + words[at + 2 :]
    assert main(words) == 0, capsys.readouterr().err


def test_a_command_line_that_does_not_parse_would_be_found(monkeypatch, capsys):
    monkeypatch.setattr(COMMANDS["doctor"], "run", lambda options: 0)
    assert main(["doctor", "--json"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--jsno"])


@pytest.mark.parametrize("path", [document(path) for path in DOCUMENTS])
def test_python_shown_compiles_and_names_what_is_public(path):
    for block in code_blocks(path.read_text(), "python", "py"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "secateur":
                assert hasattr(secateur, node.attr), f"secateur.{node.attr}"


EXAMPLES = {
    found.name: found
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
    for module in [import_module(".".join(["secateur", *path.relative_to(PACKAGE).with_suffix("").parts]))]
    for found in doctest.DocTestFinder(exclude_empty=True).find(module)
    if found.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_a_docstring_gives_what_it_says(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed = doctest.DocTestRunner().run(EXAMPLES[name]).failed
    assert not failed, capsys.readouterr().out


@pytest.mark.parametrize(
    "name", [n for n in secateur.__all__ if n not in ("detection", "solvers", "InputError", "NumericsError")]
)
def test_every_public_name_has_an_example(name):
    public = getattr(secateur, name)
    assert f"{public.__module__}.{public.__qualname__}" in EXAMPLES


@pytest.mark.parametrize("path", [document(path) for path in DOCUMENTS])
def test_make_targets_named_exist(path):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:`|^ *\$? *)make ([a-z-]+)", path.read_text(), re.MULTILINE)) <= set(targets)


# --- docs/architecture.md ---------------------------------------------------------------------------------------------


def test_every_file_of_the_architecture_exists():
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*|\w+\.(?:py|txt|toml))`", ARCHITECTURE)
    assert len(named) > 40
    assert [name for name in named if not any((place / name).exists() for place in (ROOT, PACKAGE))] == []


def test_the_architecture_names_every_file():
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "csrc").glob("*.[hc]*")]
    names = [str(path.relative_to(ROOT)) for path in sources if path.name != "__init__.py"]
    assert [name for name in names if f"`{name}`" not in ARCHITECTURE] == []


def imports_within_the_package(path):
    """The modules and folders right below secateur that a file imports, wherever in the file."""
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (name.split(".")[0] for name in names if not name.startswith("__"))


def test_imports_point_up_the_list_of_the_architecture():
    (block,) = code_blocks(ARCHITECTURE, "imports")
    level = {name: number for number, line in enumerate(block.splitlines()) for name in line.split()}
    modules = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert set(level) == modules - {"__init__"}
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own != "__init__":
            against = [name for name in imports_within_the_package(path) if level[name] >= level[own]]
            assert against == [], path
