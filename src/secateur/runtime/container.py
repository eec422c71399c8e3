"""The container of compiled models: a JSON description and named arrays in one file that may come from anywhere.

    0    8  magic, which a transfer as text would break        64  header: JSON, then zeros up to a multiple of 64
    8    4  version                                            …   arrays in the header's order, each at a multiple of
    12   4  zero                                                   64 bytes, zeros between them; nothing after the last
    16   8  bytes of the header        all numbers little-endian
    24   8  bytes of the whole file
    32  32  SHA-256 of all other bytes

`read_container` gives arrays only once magic, version, sizes, SHA-256, names, types, shapes and places have been
checked. The hash finds damage; it does not say who wrote the file, so what arrays mean is checked by who uses them.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import write_atomically

MAGIC = b"\x93SCT\r\n\x1a\n"
VERSION = 1
START = struct.Struct("<8sIIQQ32s")  # 64 bytes
ALIGNMENT = 64
TYPES = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "int32", "uint16", "int64", "uint8", "int8")}
MOST = {"header": 2**26, "arrays": 2**16, "dimensions": 8, "name": 200}

Arrays = dict[str, np.ndarray]


def write_container(path: str | Path, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> int:
    """Write the file, which appears complete or not at all; returns its bytes."""
    data = container_bytes(description, arrays)
    write_atomically(path, data)
    return len(data)


def container_bytes(description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The file as bytes."""
    places: list[dict[str, Any]] = []
    end = 0
    for name, array in arrays.items():
        begin = _aligned(end)
        places.append({"name": name, "type": array.dtype.name, "shape": list(array.shape), "begin": begin})
        end = begin + array.nbytes
    header = json.dumps({"description": description, "arrays": places}, allow_nan=False, ensure_ascii=False).encode()
    size = _aligned(START.size + len(header))
    data = bytearray(size + end)
    data[START.size : START.size + len(header)] = header
    for place, array in zip(places, arrays.values(), strict=True):
        begin = size + place["begin"]
        data[begin : begin + array.nbytes] = np.ascontiguousarray(array, TYPES[place["type"]]).tobytes()
    START.pack_into(data, 0, MAGIC, VERSION, 0, len(header), len(data), bytes(32))
    data[START.size - 32 : START.size] = _digest(data)
    return bytes(data)


def read_container(path: str | Path) -> tuple[dict[str, Any], Arrays]:
    """The description and the arrays, which are read-only.

    Raises:
        InputError: when the file is missing, damaged, or of another version; it names the field.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no compiled model {path}.")
    try:
        return parse_container(path.read_bytes())
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse_container(data: bytes) -> tuple[dict[str, Any], Arrays]:
    """As `read_container`, from the bytes of a file."""
    _require(len(data) >= START.size, f"it has {len(data)} bytes, less than the {START.size} of its start")
    magic, version, zero, header_bytes, file_bytes, digest = START.unpack_from(data)
    _require(magic == MAGIC, "magic: it is no compiled model of secateur, or was transferred as text")
    _require(version == VERSION, f"version is {version}, this secateur reads {VERSION}; compile the model again")
    _require(zero == 0, f"byte 12 is part of {zero}, not of zero")
    _require(file_bytes == len(data), f"file size: it has {len(data)} bytes, its start says {file_bytes}")
    longest = min(len(data) - START.size, MOST["header"])
    _require(header_bytes <= longest, f"header size is {header_bytes}, more than {longest}")
    _require(digest == _digest(data), "SHA-256: the file was damaged or changed after it was written")
    header = _header(data[START.size : START.size + header_bytes])
    first = _aligned(START.size + header_bytes)
    _require_zeros(data, START.size + header_bytes, first, "header")
    return header["description"], _arrays(data, first, header["arrays"])


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"header is no strict JSON: {error!s:.200}.") from None
    right = isinstance(header, dict) and set(header) == {"description", "arrays"}
    _require(right, "header should hold description and arrays, and nothing else")
    _require(isinstance(header["description"], dict), "header, description should be an object")
    right = isinstance(header["arrays"], list) and len(header["arrays"]) <= MOST["arrays"]
    _require(right, f"header, arrays should be a list of at most {MOST['arrays']}")
    return header


def _arrays(data: bytes, first: int, places: list[Any]) -> Arrays:
    """The arrays, which follow one another without overlap or gap."""
    arrays: Arrays = {}
    end = first
    for number, place in enumerate(places):
        name, kind, shape, begin = _place(place, number)
        _require(name not in arrays, f"array {name} is there twice")
        expected = _aligned(end)
        _require(first + begin == expected, f"array {name}, begin is {begin}, not {expected - first}")
        size = math.prod(shape) * kind.itemsize  # Python's whole numbers do not overflow
        _require(expected + size <= len(data), f"array {name}, shape {shape} reaches beyond the end of the file")
        _require_zeros(data, end, expected, f"array {name}")
        end = expected + size
        numbers = np.frombuffer(data, kind, math.prod(shape), expected) if size else np.empty(0, kind)
        arrays[name] = numbers.reshape(shape)
        arrays[name].flags.writeable = False
    _require(end == len(data), f"{len(data) - end} bytes stand after the last array")
    return arrays


def _place(place: Any, number: int) -> tuple[str, np.dtype, list[int], int]:
    where = f"arrays[{number}]"
    right = isinstance(place, dict) and set(place) == {"name", "type", "shape", "begin"}
    _require(right, f"{where} should hold name, type, shape and begin")
    name, kind, shape, begin = place["name"], place["type"], place["shape"], place["begin"]
    _require(isinstance(name, str) and 0 < len(name) <= MOST["name"], f"{where}.name is no short text")
    _require(isinstance(kind, str) and kind in TYPES, f"{where}.type is {kind!r:.40}, none of {', '.join(TYPES)}")
    right = isinstance(shape, list) and len(shape) <= MOST["dimensions"] and all(_is_size(size) for size in shape)
    _require(right, f"{where}.shape is {shape!r:.80}, no list of sizes")
    _require(_is_size(begin), f"{where}.begin is {begin!r:.40}, no place in a file")
    return name, TYPES[kind], shape, begin


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _digest(data: bytes | bytearray) -> bytes:
    """Of everything but the digest itself."""
    view = memoryview(data)
    digest = hashlib.sha256(view[: START.size - 32])
    digest.update(view[START.size :])
    return digest.digest()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _require_zeros(data: bytes, begin: int, end: int, before: str) -> None:
    _require(not any(data[begin:end]), f"what fills up to {before} is not zero")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _require(right: bool, problem: str) -> None:
    if not right:
        raise InputError(f"{problem}.")
