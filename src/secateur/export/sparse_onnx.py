"""ONNX weights without their zeros: sparse initializers, a value and a 64-bit index for each entry that is not zero.

That is 12 bytes an entry in float32, so it pays from two thirds zeros on. onnxruntime makes them dense when it loads.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

INDEX_BYTES = 8


def arrays_of(traced: Any) -> Iterator[np.ndarray]:
    """The floating initializers of a ModelProto."""
    from onnx import numpy_helper

    for tensor in traced.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f":
            yield array


def with_sparse_weights(traced: Any) -> Any:
    """A copy of the ModelProto in which initializers that get smaller by it are sparse."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(traced)
    dense = list(copy.graph.initializer)
    copy.graph.ClearField("initializer")
    for tensor in dense:
        array = onnx.numpy_helper.to_array(tensor)
        at = np.flatnonzero(array)
        if array.dtype.kind == "f" and len(at) * (array.itemsize + INDEX_BYTES) < array.nbytes:
            values = onnx.numpy_helper.from_array(array.reshape(-1)[at], tensor.name)
            places = onnx.numpy_helper.from_array(at.astype(np.int64), f"{tensor.name}_indices")
            copy.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, list(array.shape)))
        else:
            copy.graph.initializer.append(tensor)
    return copy
