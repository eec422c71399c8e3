"""The other end of worker.py: starts it, asks, and says what went wrong in its words."""

import json
import os
import selectors
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import InputError
from .runtimes import Runtime

WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """A process that runs one model in one runtime. Use it as a context manager."""

    def __init__(self, runtime: Runtime, threads: int, spin: bool, patience: float = 900.0, grace: float = 10.0):
        self.name, self._patience, self._grace = runtime.name, patience, grace
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process is)
        self._process = subprocess.Popen(
            [runtime.python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env=environment(threads, spin),
        )  # fmt: skip

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        """End the process: it leaves when nobody can ask any more, and is stopped when it does not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it has gone already
                    pipe.close()
        try:
            self._process.wait(self._grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def ask(self, do: str, **words: Any) -> dict[str, Any]:
        """The worker's answer.

        Raises:
            InputError: when the worker failed, ended, or took longer than its patience.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise InputError(self._ended()) from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(self._patience):
                raise InputError(f"The runtime {self.name} has not answered for {self._patience:.0f} s.")
        line = self._process.stdout.readline()
        if not line:
            raise InputError(self._ended())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise InputError(f"The runtime {self.name} failed: {answer['error']}.")
        return answer

    def _ended(self) -> str:
        """The last line it wrote on standard error."""
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read()[-4000:].decode(errors="replace").strip().splitlines()
        return f"The runtime {self.name} ended with code {code}{': ' + lines[-1][:300] if lines else ''}."


def environment(threads: int, spin: bool) -> dict[str, str]:
    """The environment of a worker: as many threads as it may have, which sleep between turns unless they may spin."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "active" if spin else "passive",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
    }
