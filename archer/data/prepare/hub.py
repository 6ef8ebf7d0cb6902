"""Files of a data set on the Hugging Face hub: which ones, and fetching them into the hub's cache.

Downloads go through huggingface_hub, which resumes them, checks them and keeps them for the next time.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from archer.data.files import source_suffix
from archer.errors import ArcherError


@dataclass(frozen=True)
class HubRequest:
    """A data set on the hub: repository, configuration (subset), split."""

    repo: str
    config: str | None
    split: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{self.repo}{f' ({self.config})' if self.config else ''}, split {self.split}"


def fetch(
    request: HubRequest, endpoint: str | None = None, cache: Path | None = None
) -> dict[Path, dict[str, str]]:
    """Download the files of a request (or take them from the cache): path -> origin, in order."""
    try:
        info = HfApi(endpoint=endpoint).dataset_info(request.repo, revision=request.revision)
        commit = info.sha or request.revision
        names = [sibling.rfilename for sibling in info.siblings or []]
        configs = info.card_data.get("configs") if info.card_data is not None else None
        where: Any = {"repo_type": "dataset", "revision": commit, "endpoint": endpoint, "cache_dir": cache}
        found = {}
        for name in choose_files(names, configs, request):
            path = Path(hf_hub_download(request.repo, name, **where))
            found[path] = {"repo": request.repo, "commit": commit, "file": name}
        return found
    except GatedRepoError as error:
        raise ArcherError(
            f"{request.repo} is gated: accept its terms on its page on the hub and log in (`hf auth login`)."
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ArcherError(
            f"There is no data set {request.repo} (revision {request.revision}) on the hub, and no file of "
            f"that name here. Relative paths start at {Path.cwd()}."
        ) from error
    except (httpx.HTTPError, OSError) as error:  # offline mode is an OSError, too
        raise ArcherError(
            f"{request.repo} could not be fetched from the hub ({str(error).splitlines()[0]}). Check the "
            "network, or fetch the file elsewhere and give its path instead of the hub id."
        ) from error


def choose_files(names: list[str], configs: Any, request: HubRequest) -> list[str]:
    """The data files of the requested configuration and split.

    The data set's card says it where it lists configurations; otherwise folders are configurations and a
    file belongs to the split that its name or folder begins with.
    """
    data = sorted(name for name in names if source_suffix(name) is not None)
    if isinstance(configs, list) and configs:
        patterns = _card_patterns(configs, request)
        found = [name for name in data if any(fnmatchcase(name, pattern) for pattern in patterns)]
    else:
        inside = [name for name in data if request.config is None or request.config in Path(name).parts[:-1]]
        found = [name for name in inside if _of_split(name, request.split)]
        found = found or (inside if len(inside) == 1 else [])
    if not found:
        listed = ", ".join(data[:12]) or "none that can be read"
        more = f" and {len(data) - 12} more" if len(data) > 12 else ""
        raise ArcherError(
            f"{request.repo} has no file for {request}. Its data files are: {listed}{more}. "
            "Choose with --config and --split, or give the path of a downloaded file."
        )
    return found


def _card_patterns(configs: list[Any], request: HubRequest) -> list[str]:
    by_name = {config.get("config_name"): config for config in configs}
    if request.config is None:
        default = next((c for c in configs if c.get("default")), None)
        chosen = default or by_name.get("default") or configs[0]
    elif request.config in by_name:
        chosen = by_name[request.config]
    else:
        raise ArcherError(
            f"{request.repo} has no configuration {request.config!r}; it has: {', '.join(map(str, by_name))}."
        )
    patterns: list[str] = []
    for entry in _as_list(chosen.get("data_files", [])):
        if isinstance(entry, str):
            patterns.append(entry)
        elif entry.get("split") == request.split:
            patterns += _as_list(entry.get("path", []))
    return patterns


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else value


def _of_split(name: str, split: str) -> bool:
    """Whether a file is of a split: test.jsonl, test2.jsonl, test-00000-of-00002.parquet, test/a.parquet."""
    pattern = re.compile(rf"{re.escape(split)}(\d*[-._].*)?")
    return any(pattern.fullmatch(part) for part in Path(name).parts)
