"""The client's own files: served by name, never by path, and joined into one script for single-file pages.

Joining knows two forms only, and checks that the modules use no other: `import { a, b as c } from "./x.js";`
and `export` before a function, async function, class or const. Each module becomes a function that returns
its exports, so that names stay private to their module as they are in the browser.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"
VENDOR = "vendor"


@dataclass(frozen=True)
class Asset:
    """A file of the client."""

    content: bytes
    media_type: str
    etag: str


@cache
def client_assets() -> dict[str, Asset]:
    """All files of the client by name; those of others as `vendor/NAME`."""
    folder = Path(__file__).parent / "static"
    found = {}
    for path in sorted([*folder.iterdir(), *(folder / VENDOR).iterdir()]):
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            name = path.relative_to(folder).as_posix()
            found[name] = Asset(content, MEDIA_TYPES[path.suffix], etag_of(content))
    return found


def etag_of(content: bytes) -> str:
    """What tells a browser whether it has this content already."""
    return f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'


_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (async function|function|class|const) (\w+)", re.MULTILINE)
_LEFT = re.compile(r"^\s*(import\b|export\b).*$|\bimport\(|\bimport\.meta", re.MULTILINE)


class BundleError(ValueError):
    """A module of the client uses a form that cannot be joined."""


def bundle(modules: dict[str, str], entry: str = "main.js") -> str:
    """One script that runs `entry` and everything it imports, dependencies first."""
    order: list[str] = []
    _visit(entry, modules, order, ())
    parts = ['"use strict";', "const modules = {};"]
    parts += [_wrapped(name, modules[name]) for name in order]
    return "(() => {\n" + "\n".join(parts) + "\n})();\n"


def _visit(name: str, modules: dict[str, str], order: list[str], path: tuple[str, ...]) -> None:
    if name in path:
        raise BundleError(f"modules import each other in a circle: {' -> '.join([*path, name])}")
    if name in order:
        return
    if name not in modules:
        raise BundleError(f"{path[-1] if path else 'the page'} imports {name}, which is not there")
    for match in _IMPORT.finditer(modules[name]):
        _visit(match[2], modules, order, (*path, name))
    order.append(name)


def _wrapped(name: str, source: str) -> str:
    exports = [match[2] for match in _EXPORT.finditer(source)]
    body = _IMPORT.sub(lambda match: f'const {{{_renamed(match[1])}}} = modules["{match[2]}"];', source)
    body = _EXPORT.sub(lambda match: f"{match[1]} {match[2]}", body)
    left = _LEFT.search(body)
    if left:
        raise BundleError(f"{name}: cannot join {left[0].strip()!r}")
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exports)} }};\n}})();'


def _renamed(names: str) -> str:
    """`a, b as c` becomes `a, b: c`."""
    return re.sub(r"(\w+) as (\w+)", r"\1: \2", " ".join(names.split()))
