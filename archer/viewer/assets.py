"""The client's own files: read once from the package, served by name, never by path."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"


@dataclass(frozen=True)
class Asset:
    """A file of the client."""

    content: bytes
    media_type: str
    etag: str


@cache
def client_assets() -> dict[str, Asset]:
    """All files of the client by name."""
    return {
        path.name: _asset(path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in sorted(STATIC.iterdir())
        if path.suffix in MEDIA_TYPES
    }


def _asset(content: bytes, media_type: str) -> Asset:
    return Asset(content, media_type, f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"')
