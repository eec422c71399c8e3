"""The model and dataset hub, asked only when it answers: its own retries would take most of a minute."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from huggingface_hub import constants as hub

CONNECT_SECONDS = 3.0


@contextmanager
def quick_hub() -> Iterator[None]:
    """Without an answer from the hub use only what it left in the cache."""
    offline = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = offline or not _hub_answers()
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = offline


def _hub_answers() -> bool:
    address = urlsplit(hub.ENDPOINT)
    if address.scheme in urllib.request.getproxies():  # the proxy may reach what a plain connection does not
        return True
    try:
        port = address.port or {"http": 80, "https": 443}[address.scheme]
        socket.create_connection((address.hostname, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
