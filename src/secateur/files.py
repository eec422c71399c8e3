"""Files that are either complete or absent: written under a temporary name, flushed to the disk, then renamed.

A folder of results gets the same care as a file: a crash, Ctrl-C or a full disk never leaves half of one under the name
that was asked for.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .errors import InputError
from .units import readable

MARKERS = ("secateur.json", "report.json", "bench.json")  # a folder that holds one of them was written here
FULL = {errno.ENOSPC, errno.EDQUOT}


def write_atomically(path: str | Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file that appears complete or not at all; a file already there is replaced in one step.

    Args:
        content: the bytes, or a function that writes them to the binary file it is given.
    Raises:
        InputError: when the disk is full or the folder cannot be written.
    """
    path = Path(path)
    temporary = _temporary_name(path)
    with _as_input_errors(path, needed=len(content) if isinstance(content, bytes) else 0):
        try:
            with temporary.open("xb") as file:
                file.write(content) if isinstance(content, bytes) else content(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(path: str | Path, overwrite: bool = False, needed: int = 0) -> Iterator[Path]:
    """A temporary folder that takes the name `path` once the body has ended well, and vanishes otherwise.

    Args:
        overwrite: replace a folder of results that is there already; it stays whole until the new one is.
        needed: bytes the body will write, if known; checked against the free space first.
    Raises:
        InputError: when `path` exists, cannot be written, or the disk is full.
    """
    path = check_output(path, overwrite)
    temporary = _temporary_name(path)
    with _as_input_errors(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        check_space(path, needed)
        temporary.mkdir()
    try:
        with _as_input_errors(path, needed, only=FULL):  # other failures of the body speak for themselves
            yield temporary
        with _as_input_errors(path, needed):
            for file in temporary.rglob("*"):
                _sync(file)
            _sync(temporary)
            _take_name(temporary, path, overwrite)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def check_output(path: str | Path, overwrite: bool = False) -> Path:
    """Whether a folder could be written at `path`, before any work is done; returns it with links resolved.

    Raises:
        InputError: when `path` exists (and may not be replaced), or its parent cannot be written.
    """
    given = path
    with _as_input_errors(Path(path)):
        path = Path(path).resolve()
        if _is_taken(path):
            if not overwrite:
                raise InputError(f"The output folder {given} exists already; name another one or pass --overwrite.")
            if not _written_here(path):
                raise InputError(f"{given} was not written by secateur, so --overwrite leaves it; name another folder.")
        parent = next(p for p in path.parents if os.path.lexists(p))
        if not parent.is_dir():
            raise InputError(f"The output folder {given} cannot be made: {parent} is a file; name another one.")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"The output folder {given} cannot be made: no permission to write in {parent}.")
    return path


def check_file(path: str | Path, overwrite: bool = False) -> Path:
    """Whether a file could be written at `path`, before any work is done.

    Raises:
        InputError: when there is one (and it may not be replaced), or its folder cannot be written.
    """
    path = Path(path)
    with _as_input_errors(path):
        if path.is_dir():
            raise InputError(f"The output file {path} is a folder; name a file in it.")
        if _is_taken(path) and not overwrite:
            raise InputError(f"The output file {path} exists already; name another one or pass --overwrite.")
        if not path.parent.is_dir():
            raise InputError(f"The output file {path} cannot be made: there is no folder {path.parent}; make it first.")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(f"The output file {path} cannot be made: no permission to write in {path.parent}.")
    return path


def check_space(path: str | Path, needed: int) -> None:
    """Raise InputError when the disk has no room for `needed` bytes at `path`."""
    if needed > shutil.disk_usage(_existing(Path(path))).free:
        raise _disk_is_full(Path(path), needed)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")


def _sync(path: Path) -> None:
    """Wait until the file, or the folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not (error.errno == errno.EINVAL and path.is_dir()):  # some network file systems sync no folders
            raise
    finally:
        os.close(handle)


def _take_name(temporary: Path, path: Path, overwrite: bool) -> None:
    if not (overwrite and os.path.lexists(path)):
        if os.path.lexists(path):  # somebody was faster
            raise FileExistsError(errno.EEXIST, "it appeared in the meantime", str(path))
        temporary.rename(path)
        _sync(path.parent)
        return
    old = _temporary_name(path)
    path.rename(old)
    try:
        temporary.rename(path)
        _sync(path.parent)
    except BaseException:
        if not os.path.lexists(path):
            old.rename(path)
        raise
    shutil.rmtree(old)


def _is_taken(path: Path) -> bool:
    try:
        path.lstat()  # unlike exists, refuses a name that is too long
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _written_here(path: Path) -> bool:
    """Whether `path` is a folder of results, a folder of nothing but such folders, or empty."""
    if not path.is_dir():
        return False
    holds = [any((folder / name).is_file() for name in MARKERS) for folder in (path, *path.iterdir())]
    return holds[0] or all(holds[1:])


@contextmanager
def _as_input_errors(path: Path, needed: int = 0, only: set[int] | None = None) -> Iterator[None]:
    """Say in one sentence what the operating system refused."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise _disk_is_full(path, needed) from error
        if only is None:
            raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
        raise


def _disk_is_full(path: Path, needed: int) -> InputError:
    free = "none"
    with suppress(OSError):
        free = readable(shutil.disk_usage(_existing(path)).free)
    needs = f"needs {readable(needed)}" if needed else "ran out of space"
    return InputError(f"The disk is full: writing {path} {needs}, {free} free; make room or name another folder.")


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.absolute().parents) if p.exists())
