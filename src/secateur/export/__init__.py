"""What a model is taken elsewhere as: ONNX, dense safetensors, safetensors without the zeros."""

from .onnx import OPSET, OnnxExport, export_onnx
from .weights import compressed_state, export_dense, export_sparse, load_sparse, restored_state

__all__ = [
    "OPSET",
    "OnnxExport",
    "compressed_state",
    "export_dense",
    "export_onnx",
    "export_sparse",
    "load_sparse",
    "restored_state",
]
