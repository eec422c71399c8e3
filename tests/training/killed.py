"""killed.py MODEL OUT MOMENTS CHANGES: run children one after another, each killed at its moment; print how each ended.

A moment is "step 3" (the third optimizer step of the child), "prune 2", "file 7" (inside the writing of a checkpoint),
"rename 5" (between a folder's files and its name), "model 2" (inside the writing of a result) or "after 0.5" (seconds).
"""

import json
import os
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path

import torch
from small import a_recipe, trained

import secateur.checkpoint
import secateur.files
from secateur.training import gradual, loop, resume


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(function, at):
    """The function, whose call number `at` is the last thing that happens."""
    calls = count(1)

    def call(*arguments, **words):
        if next(calls) == at:
            die()
        return function(*arguments, **words)

    return call


PLACES = {
    "step": (loop, "learn_"),
    "prune": (gradual, "make_same_"),
    "file": (resume, "write_tensors"),
    "rename": (secateur.files, "_take_name"),
    "model": (secateur.checkpoint, "write_config"),
}


def child(model, out, moment, changes):
    torch.set_num_threads(1)
    kind, _, number = moment.partition(" ")
    if kind == "after":
        threading.Thread(target=lambda: (time.sleep(float(number)), die()), daemon=True).start()
    elif kind:
        module, name = PLACES[kind]
        setattr(module, name, deadly(getattr(module, name), int(number)))
    trained(a_recipe(model, *changes), out)


def main(model, out, moments, changes):
    for moment in [*moments, ""]:
        process = os.fork()
        if process == 0:
            try:
                child(model, Path(out), moment, changes)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(3)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:]))
