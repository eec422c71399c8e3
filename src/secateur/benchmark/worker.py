"""One runtime in a process of its own: it loads a model, then times calls whenever it is told to, so that rivals can
take turns and none can hold the threads or the memory of another.

Run by its path, with any Python that has numpy and the runtime; requests and answers are lines of JSON. Only what is
needed for the runtime asked for is imported: the environment may not know this package.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

Call = Callable[[], np.ndarray]


def main() -> None:
    """Answer one line for each line, until the other side goes away."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a runtime prints must not get between the answers
    call: Call | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "load":
                start = time.perf_counter()
                images = np.load(request["images"])
                call, version = RUNTIMES[request["runtime"]](request, images)
                answer = {"seconds": time.perf_counter() - start, "version": version}
            else:
                assert call is not None, "nothing is loaded"
                answer = ANSWERS[request["do"]](call, request)
        except BaseException as error:  # told to the other side, which decides
            words = " ".join(str(error).split())[:400]
            answer = {"error": f"{type(error).__name__}: {words}" if words else type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


# --- what can be asked ------------------------------------------------------------------------------------------------


def time_calls(call: Call, request: dict) -> dict:
    """Seconds of each of `calls` calls, after one that does not count: it finds caches and threads asleep."""
    call()
    times = []
    for _ in range(request["calls"]):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return {"times": times}


def write_outputs(call: Call, request: dict) -> dict:
    """The outputs, as a .npy file."""
    np.save(request["file"], call())
    return {}


def measure_memory(call: Call, request: dict) -> dict:
    """The most bytes that the process holds during one call."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    call()
    try:
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        return {"bytes": 1024 * next(int(words[1]) for words in lines if words[0] == "VmHWM:")}
    except (OSError, StopIteration):  # not Linux
        return {"bytes": None}


ANSWERS = {"time": time_calls, "outputs": write_outputs, "memory": measure_memory}


# --- the runtimes: each gives a call without arguments, and its version -----------------------------------------------


def load_onnxruntime(request: dict, images: np.ndarray) -> tuple[Call, str]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request["threads"]
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if request["spin"] else "0")
    options.add_free_dimension_override_by_name("batch", len(images))
    session = onnxruntime.InferenceSession(request["model"], options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"images": images})[0], onnxruntime.__version__


def load_openvino(request: dict, images: np.ndarray) -> tuple[Call, str]:
    import openvino

    core = openvino.Core()
    model = core.read_model(request["model"])
    model.reshape(list(images.shape))  # a fixed batch is faster than a free one
    settings = {
        "PERFORMANCE_HINT": "LATENCY",  # one request at a time, which gets all threads
        "INFERENCE_NUM_THREADS": request["threads"],
        "INFERENCE_PRECISION_HINT": "f32",  # it would take bfloat16 by itself where the processor has it
    }
    compiled = core.compile_model(model, "CPU", settings)
    query = compiled.create_infer_request()
    return lambda: query.infer({0: images}, share_inputs=True)[0], openvino.__version__.partition("-")[0]


def load_deepsparse(request: dict, images: np.ndarray) -> tuple[Call, str]:
    import deepsparse

    engine = deepsparse.compile_model(request["model"], batch_size=len(images), num_cores=request["threads"])
    return lambda: engine.run([images], val_inp=False)[0], deepsparse.__version__


def _of_torch(name: str) -> Callable[[dict, np.ndarray], tuple[Call, str]]:
    def load(request: dict, images: np.ndarray) -> tuple[Call, str]:
        from secateur.benchmark import torch_runtimes

        return torch_runtimes.load(name, request, images)

    return load


RUNTIMES = {
    "onnxruntime": load_onnxruntime,
    "openvino": load_openvino,
    "deepsparse": load_deepsparse,
    **{name: _of_torch(name) for name in ("torch", "torch.compile", "secateur")},
}


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its siblings are no modules of anyone else's
    main()
