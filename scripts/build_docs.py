"""Builds the documentation as a searchable site: `make docs`, or `python scripts/build_docs.py [--serve]`.

The pages are those of the repository, under the same paths, so that a link works here and on a code host
alike. A link to a file that is not part of the site (the diary, a module) keeps its text only. Every warning
is an error: a dead link, a missing anchor, a page that the navigation does not name. Nothing is fetched.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "mkdocs.yml"
STAGED = ROOT / "build" / "site-sources"
SITE = ROOT / "build" / "site"
FILES = (
    "README.md",
    "OVERVIEW.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Dockerfile",
    "Dockerfile.gpu",
    "constraints.txt",
    "constraints-gpu.txt",
    "scripts/train/README.md",
    "archer/viewer/static/icon.svg",
)
FOLDERS = ("docs", "examples", "scripts/cluster")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*(?:\n[^\]\n]*)?)\]\((?P<target>[^)\s]+)\)")


def lay_out(root: Path, staged: Path) -> list[str]:
    """Copy what the site shows to `staged`, under the paths of the repository; returns its pages."""
    shutil.rmtree(staged, ignore_errors=True)
    files = [root / name for name in FILES]
    files += [path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.is_file()]
    shown = {path for path in files if "__pycache__" not in path.parts}
    for path in shown:
        target = staged / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(kept_links(path.read_text(), path.parent, shown))
        else:
            shutil.copyfile(path, target)
    return sorted(path.relative_to(root).as_posix() for path in shown if path.suffix == ".md")


def kept_links(text: str, folder: Path, shown: set[Path]) -> str:
    """A link from `folder` to a file beside the site becomes its text; a dead one stays, and warns."""

    def instead(match: re.Match[str]) -> str:
        target = match["target"].split("#")[0]
        if not target or "://" in target:
            return match[0]
        there = (folder / target).resolve()
        return match["text"] if there.exists() and there not in shown else match[0]

    return LINK.sub(instead, text)


def in_navigation(entry: Any) -> Iterator[str]:
    """The pages that the `nav` of the configuration names."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from in_navigation(below)


def main() -> int:
    """Lay the sources out and run the site generator on them."""
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--serve", action="store_true", help="serve it on http://localhost:8000")
    serve = parser.parse_args().serve
    pages = lay_out(ROOT, STAGED)
    lost = sorted(set(pages) - set(in_navigation(yaml.safe_load(CONFIG.read_text())["nav"])))
    if lost:
        print(
            f"{CONFIG.name}: no entry of nav names {', '.join(lost)}; nobody would find it", file=sys.stderr
        )
        return 1
    what = ["serve"] if serve else ["build", "--strict", "--clean"]
    done = subprocess.run([sys.executable, "-m", "zensical", *what, "-f", str(CONFIG)], check=False)
    if done.returncode == 0 and not serve:
        print(f"{SITE.relative_to(ROOT)} is whole; python scripts/build_docs.py --serve shows it")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
