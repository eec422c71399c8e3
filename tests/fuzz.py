"""Random and mutated compiled files: reading one gives a module that runs, or an InputError, and nothing else.

    python tests/fuzz.py --seconds 120 --core build/fuzz/_core.so     (`make fuzz`: kernels under sanitizers)
    python tests/fuzz.py --make-corpus                                (writes the valid files of tests/corpus)

Most mutants get their sizes and hash put right again, so that what lies behind those checks is reached. A mutant that
does anything else is written to tests/corpus, where the ordinary tests read it from then on.
"""

import argparse
import importlib.util
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

CORPUS = Path(__file__).parent / "corpus"
WHOLE = [
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    63,
    64,
    65,
    127,
    255,
    1023,
    1024,
    65535,
    65536,
    2**30,
    2**31 - 1,
    2**31,
    2**62,
    2**63,
    -(2**63),
]
OTHERS = [None, True, "", "x" * 300, 0.5, -0.0, 1e308, [], {}, [1], {"a": 1}]
MOST_PIXELS = 10**6  # of an image that is tried out


def attempt(data: bytes) -> str:
    """Read the bytes as a compiled file and run what comes out: "runs", or why they were refused."""
    import torch

    from secateur.errors import InputError
    from secateur.runtime.container import parse_container
    from secateur.runtime.encoder_file import rebuild_encoder

    try:
        description, arrays = parse_container(data)
        if description.get("kind") != "encoder":
            return "another kind"
        module = rebuild_encoder(description, arrays)
    except InputError as error:
        return str(error)
    if np.prod(module.image) <= MOST_PIXELS:
        module(torch.ones(2, *module.image))
    return "runs"


def mutate(chance: random.Random, data: bytes) -> bytes:
    """One of the ways to spoil a valid file."""
    return chance.choice([spoil_bytes, spoil_sealed_bytes, spoil_header, spoil_header, spoil_array, spoil_array])(
        chance, data
    )


def spoil_bytes(chance: random.Random, data: bytes) -> bytes:
    """Some bytes changed, left out or put in."""
    spoiled = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(spoiled) + 1)
        action = chance.randrange(4)
        if action == 0 and at < len(spoiled):
            spoiled[at] ^= 1 << chance.randrange(8)
        elif action == 1:
            spoiled[at : at + chance.choice([1, 4, 64])] = b""
        elif action == 2:
            spoiled[at:at] = chance.randbytes(chance.choice([1, 4, 64]))
        else:
            spoiled[at : at + 4] = chance.choice(WHOLE).to_bytes(9, "little", signed=True)[:4]
        if not spoiled:
            break
    return bytes(spoiled)


def spoil_sealed_bytes(chance: random.Random, data: bytes) -> bytes:
    return seal(spoil_bytes(chance, data))


def spoil_header(chance: random.Random, data: bytes) -> bytes:
    """One value of the JSON replaced, taken away or repeated."""
    header, rest = split(data)
    places = list(leaves(header))
    holder, key = chance.choice(places)
    value = holder[key]
    action = chance.randrange(4)
    if action == 0:
        holder[key] = chance.choice(WHOLE)
    elif action == 1:
        holder[key] = chance.choice(OTHERS)
    elif action == 2 and isinstance(value, int):
        holder[key] = value + chance.choice([-64, -8, -2, -1, 1, 2, 8, 64])
    elif isinstance(holder, list):
        holder.pop(key) if chance.random() < 0.5 else holder.append(value)
    else:
        del holder[key]
    return join(header, rest)


def spoil_array(chance: random.Random, data: bytes) -> bytes:
    """Some numbers of one array replaced, or the array made longer or shorter."""
    from secateur.runtime.container import container_bytes, parse_container

    description, arrays = parse_container(data)
    name = chance.choice(list(arrays))
    array = arrays[name].copy().reshape(-1)
    if chance.random() < 0.25:
        change = chance.choice([-64, -4, -1, 1, 4, 64])
        array = array[:change] if change < 0 else np.concatenate([array, array[:1].repeat(change)])
    for _ in range(chance.choice([1, 1, 3]) if array.size else 0):
        at = chance.randrange(array.size)
        if array.dtype.kind == "f":
            array[at] = chance.choice([0.0, -1.0, np.nan, np.inf, 3e38, 1e-45])
        else:
            limits = np.iinfo(array.dtype)
            near = int(array[at]) + chance.choice([-64, -1, 1, 64])
            array[at] = min(max(chance.choice([*WHOLE, near, near]), limits.min), limits.max)
    arrays[name] = array.reshape(arrays[name].shape) if array.size == arrays[name].size else array
    return container_bytes(description, arrays)


# --- files as bytes ---------------------------------------------------------------------------------------------------


def leaves(value):
    """(holder, key) of everything inside a JSON value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from leaves(value[key])


def split(data: bytes) -> tuple[dict, bytes]:
    """The header, and what comes after it."""
    from secateur.runtime.container import START

    length = START.unpack_from(data)[3]
    end = -(-(START.size + length) // 64) * 64
    return json.loads(data[START.size : START.size + length]), data[end:]


def join(header: dict, rest: bytes) -> bytes:
    from secateur.runtime.container import MAGIC, START, VERSION

    text = json.dumps(header).encode()
    head = START.pack(MAGIC, VERSION, 0, len(text), 0, bytes(32)) + text
    return seal(head + bytes(-len(head) % 64) + rest)


def seal(data: bytes) -> bytes:
    """With the size and the hash that belong to the bytes, where there is room for them."""
    import hashlib

    if len(data) < 64:
        return data
    start = data[:24] + len(data).to_bytes(8, "little")
    return start + hashlib.sha256(start + data[64:]).digest() + data[64:]


# --- as a program -----------------------------------------------------------------------------------------------------


def seeds() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(CORPUS.glob("valid-*.sct"))}


def make_corpus() -> None:
    """Tiny encoders, one for each way that a head can be."""
    import timm
    import torch

    from secateur.compiled import save_compiled

    small = {
        "img_size": 8,
        "patch_size": 4,
        "embed_dim": 16,
        "depth": 1,
        "num_heads": 2,
        "mlp_ratio": 1,
        "num_classes": 3,
    }
    for name, architecture, more in (
        ("valid-token", "vit_tiny_patch16_224", {}),
        ("valid-mean", "vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False, "num_classes": 0}),
        ("valid-distilled", "deit_tiny_distilled_patch16_224", {"depth": 2}),
    ):
        torch.manual_seed(0)
        model = timm.create_model(architecture, **{**small, **more}).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(torch.rand_like(parameter) > 0.7)
        CORPUS.mkdir(exist_ok=True)
        print(name, save_compiled(model, CORPUS / f"{name}.sct", measure=False), "bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--core", type=Path, help="the extension to load in the place of the installed one")
    parser.add_argument("--make-corpus", action="store_true")
    options = parser.parse_args()
    if options.core is not None:
        spec = importlib.util.spec_from_file_location("secateur._core", options.core)
        sys.modules["secateur._core"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["secateur._core"])
    if options.make_corpus:
        make_corpus()
        return 0
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    chance, files, found = random.Random(seed), list(seeds().values()), Counter()
    end, failures = time.monotonic() + options.seconds, 0
    current = CORPUS / f"running-{seed}.sct"  # what a crash leaves behind
    while time.monotonic() < end:
        data = mutate(chance, chance.choice(files))
        current.write_bytes(data)
        try:
            found[attempt(data).split(" is ")[0].split(":")[0][:50]] += 1
        except Exception as error:
            failures += 1
            (CORPUS / f"found-{seed}-{sum(found.values())}.sct").write_bytes(data)
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
    current.unlink()
    for words, count in found.most_common(25):
        print(f"{count:8} {words}")
    print(f"seed {seed}: {sum(found.values())} files, {found['runs']} of them ran, {failures} did what they should not")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
