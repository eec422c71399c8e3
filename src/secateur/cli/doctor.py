"""Say what this installation can do: versions, the native core, threads, memory, accelerators, the bundled files.

Exits with 1 when something that belongs to the installation is missing or broken.
"""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from .console import Console
from .options import option

HELP = "check the installation"
PACKAGES = ("torch", "timm", "safetensors", "accelerate", "numpy", "rich", "jinja2", "matplotlib")
EXTRAS = ("transformers", "scipy", "faster-coco-eval", "onnx", "onnxscript", "onnxruntime", "lightning")


@dataclass
class Options:
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    import torch

    from .. import __version__, bundled, native
    from ..memory import available_bytes
    from ..units import readable

    console, core = Console(options.json), native.describe()
    facts = {
        "secateur": __version__,
        "python": platform.python_version(),
        **{name: installed(name) for name in PACKAGES},
        **{name: installed(name) or "not installed" for name in EXTRAS},
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "free memory": readable(available_bytes()),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "native core": core,
        "bundled model": (bundled.MODEL_FOLDER / "model.safetensors").is_file(),
        "bundled images": bundled.IMAGES.is_file(),
    }
    faults = [f"{name} is not installed" for name in PACKAGES if facts[name] is None]
    faults += [f"the package lacks its {name}" for name in ("bundled model", "bundled images") if not facts[name]]
    console.document({"ok": not faults, "facts": facts, "faults": faults})
    shown = {**facts, "native core": _core_in_words(core)}
    console.table("Installation", ["what", "found"], list(shown.items()))
    for fault in faults:
        console.line(f"fault: {fault}.")
    return 1 if faults else 0


def _core_in_words(core: dict) -> str:
    if core["present"]:
        return f"present, running {core['isa']} (this processor can: {', '.join(core['isas'])})"
    return f"absent ({core['reason']}): the torch twins do the same, many times slower"


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
