"""Per-sample gradients of chosen weights, streamed layer by layer out of one forward and backward pass."""

from .alone import gradients_one_by_one, single_gradients
from .groups import Sink
from .stream import gradients_by_hooks, stream_gradients

__all__ = ["Sink", "gradients_by_hooks", "gradients_one_by_one", "single_gradients", "stream_gradients"]
