import errno
import os

import numpy as np
import pytest
import torch

from secateur.errors import InputError
from secateur.files import check_file, check_output, new_folder, write_atomically
from secateur.strict_json import json_bytes, read_json


def full_disk(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", [b"new", lambda file: file.write(b"new")])
def test_a_file_is_replaced_in_one_step_and_leaves_no_other(tmp_path, content):
    (tmp_path / "a").write_bytes(b"old")
    write_atomically(tmp_path / "a", content)
    assert (tmp_path / "a").read_bytes() == b"new" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_a_failing_writer_leaves_the_old_file(tmp_path, failure):
    def write(file):
        file.write(b"half")
        raise failure

    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(failure):
        write_atomically(tmp_path / "a", write)
    assert (tmp_path / "a").read_bytes() == b"old" and names(tmp_path) == ["a"]


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match=r"The disk is full: writing .*/a needs 5 bytes, .* free"):
        write_atomically(tmp_path / "a", b"12345")
    assert (tmp_path / "a").read_bytes() == b"old" and names(tmp_path) == ["a"]


def test_a_missing_folder_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_atomically(tmp_path / "absent" / "a", b"")


def test_a_new_folder_appears_complete_under_parents_that_are_made(tmp_path):
    with new_folder(tmp_path / "x" / "run") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("a")
        assert names(tmp_path / "x") == [folder.name]
    assert names(tmp_path / "x") == ["run"] and (tmp_path / "x" / "run" / "inner" / "a").read_text() == "a"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, PermissionError, InputError])
def test_a_failing_body_leaves_nothing_and_keeps_its_own_error(tmp_path, failure):
    with pytest.raises(failure), new_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("half")
        raise failure
    assert names(tmp_path) == []


def test_a_full_disk_in_the_body_or_at_the_end_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"disk is full: writing .*run ran out of space"), new_folder(tmp_path / "run"):
        full_disk()
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match="disk is full"), new_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("all")
    assert names(tmp_path) == []


def test_too_little_space_is_known_before_the_body_runs(tmp_path):
    with pytest.raises(InputError, match=r"needs 909494701\.8 TiB"), new_folder(tmp_path / "run", needed=10**21):
        pytest.fail("the body ran")
    assert names(tmp_path) == []


def test_a_rename_that_fails_brings_the_old_folder_back(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (run / "secateur.json").write_text("old")
    rename = type(run).rename

    def refuse_results(self, target):
        if self.name.endswith(".part") and target == run and not (self / "secateur.json").exists():
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(type(run), "rename", refuse_results)
    with pytest.raises(InputError, match="cannot be written: Input/output error"), new_folder(run, overwrite=True):
        pass
    assert names(tmp_path) == ["run"] and (run / "secateur.json").read_text() == "old"


@pytest.mark.parametrize("holds", [["secateur.json"], ["report.json"], [], ["50/secateur.json", "75/secateur.json"]])
def test_overwrite_replaces_what_secateur_wrote_once_the_new_is_complete(tmp_path, holds):
    run = tmp_path / "run"
    run.mkdir()
    for name in holds:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("old")
    with pytest.raises(RuntimeError), new_folder(run, overwrite=True):
        raise RuntimeError
    assert all((run / name).read_text() == "old" for name in holds)
    with new_folder(run, overwrite=True) as folder:
        (folder / "a").write_text("new")
        assert all((run / name).read_text() == "old" for name in holds)
    assert names(run) == ["a"] and names(tmp_path) == ["run"]


@pytest.mark.parametrize("holds", ["notes.txt", "photos/secateur.txt"])
def test_overwrite_leaves_what_secateur_did_not_write(tmp_path, holds):
    (tmp_path / "run" / holds).parent.mkdir(parents=True)
    (tmp_path / "run" / holds).write_text("mine")
    for call in (check_output, lambda *given: new_folder(*given).__enter__()):
        with pytest.raises(InputError, match="was not written by secateur"):
            call(tmp_path / "run", True)
    assert (tmp_path / "run" / holds).read_text() == "mine"


def test_a_file_is_no_folder_to_overwrite(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InputError, match="was not written by secateur"):
        check_output(tmp_path / "run", overwrite=True)


def test_an_existing_folder_is_refused_before_the_body_runs(tmp_path):
    message = r"The output folder .* exists already; name another one or pass --overwrite\."
    with pytest.raises(InputError, match=message), new_folder(tmp_path):
        pytest.fail("the body ran")


def test_a_folder_that_appears_meanwhile_is_not_touched(tmp_path):
    with pytest.raises(InputError, match="it appeared in the meantime"), new_folder(tmp_path / "run"):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "other").write_text("other")
    assert names(tmp_path) == ["run"] and names(tmp_path / "run") == ["other"]


def test_a_parent_that_cannot_hold_the_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be made: .*file is a file"):
        check_output(tmp_path / "file" / "run")
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        check_output(tmp_path / ("x" * 300))
    monkeypatch.setattr(os, "access", lambda *given: False)
    with pytest.raises(InputError, match="no permission to write in"):
        check_output(tmp_path / "a" / "run")


def test_a_link_to_a_run_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "report.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with new_folder(tmp_path / "link", overwrite=True) as folder:
        (folder / "a").write_text("new")
    assert (tmp_path / "link").is_symlink() and names(tmp_path / "real") == ["a"]


def test_a_file_system_that_syncs_no_folders_is_served(tmp_path, monkeypatch):
    fsync = os.fsync

    def picky(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", picky)
    with new_folder(tmp_path / "run") as folder:
        (folder / "a").write_text("a")
    assert names(tmp_path / "run") == ["a"]


def test_json_has_no_infinities_and_plain_scalars(tmp_path):
    value = {1: float("nan"), "b": [np.float32("inf"), torch.tensor(2), np.int64(3)], "c": (True, tmp_path), "é": None}
    (tmp_path / "a.json").write_bytes(json_bytes(value))
    read = read_json(tmp_path / "a.json")
    assert read == {"1": None, "b": [None, 2, 3], "c": [True, str(tmp_path)], "é": None}


def test_json_refuses_what_it_has_no_word_for():
    with pytest.raises(InputError, match="A Tensor cannot be written as JSON"):
        json_bytes({"a": torch.zeros(2)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": NaN}', "damaged: NaN is not JSON"),
        (b'{"a": 1', "damaged"),
        (b'{"a": "\xff"}', "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"[1]", "should hold a JSON object, and holds a list"),
    ],
)
def test_damaged_json_is_an_input_error(tmp_path, text, message):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(InputError, match=message):
        read_json(tmp_path / "a.json")


def test_missing_and_enormous_json_are_input_errors(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="does not exist"):
        read_json(tmp_path / "a.json")
    monkeypatch.setattr("secateur.strict_json.JSON_LIMIT", 3)
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(InputError, match="larger than 3 bytes"):
        read_json(tmp_path / "a.json")


def test_whether_a_file_can_be_written_is_known_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "there").write_bytes(b"mine")
    assert check_file(tmp_path / "new") == tmp_path / "new"
    assert check_file(tmp_path / "there", overwrite=True) == tmp_path / "there"
    for path, words in (
        (tmp_path, "is a folder; name a file in it"),
        (tmp_path / "there", "exists already; name another one or pass --overwrite"),
        (tmp_path / "none" / "new", "there is no folder .*none; make it first"),
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(InputError, match=words):
            check_file(path)
    monkeypatch.setattr(os, "access", lambda *words: False)
    with pytest.raises(InputError, match="no permission to write in"):
        check_file(tmp_path / "new")
