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
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from archer.data.prepare.records import suffix_of
from archer.errors import ArcherError


@dataclass(frozen=True)
class HubRequest:
    """A data set on the hub: repository, configuration (subset), split."""

    repo: str
    config: str | None
    split: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{self.repo}" + (f" ({self.config})" if self.config else "") + f", split {self.split}"


@dataclass(frozen=True)
class HubFile:
    """A fetched file and where it came from."""

    path: Path
    name: str
    repo: str
    commit: str


def fetch(request: HubRequest, endpoint: str | None = None, cache: Path | None = None) -> list[HubFile]:
    """Download the files of a request (or take them from the cache) and return them in order."""
    try:
        info = HfApi(endpoint=endpoint).dataset_info(request.repo, revision=request.revision)
        commit = info.sha or request.revision
        names = [sibling.rfilename for sibling in info.siblings or []]
        card = info.card_data.to_dict() if info.card_data is not None else {}
        chosen = choose_files(names, card.get("configs"), request)
        return [
            HubFile(Path(_download(request, name, commit, endpoint, cache)), name, request.repo, commit)
            for name in chosen
        ]
    except GatedRepoError as error:
        raise ArcherError(
            f"{request.repo} is gated: accept its terms on its page on the hub and log in (`hf auth login`)."
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ArcherError(
            f"There is no data set {request.repo} (revision {request.revision}) on the hub, and no file of "
            f"that name here. Relative paths start at {Path.cwd()}."
        ) from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise ArcherError(
            f"{request.repo} could not be fetched from the hub ({str(error).splitlines()[0]}). Check the "
            "network, or fetch the file elsewhere and give its path instead of the hub id."
        ) from error


def _download(request: HubRequest, name: str, commit: str, endpoint: str | None, cache: Path | None) -> str:
    return hf_hub_download(
        request.repo, name, repo_type="dataset", revision=commit, endpoint=endpoint, cache_dir=cache
    )


def choose_files(names: list[str], configs: Any, request: HubRequest) -> list[str]:
    """The data files of the requested configuration and split.

    The data set's card says it where it lists configurations; otherwise folders are configurations and a
    file belongs to the split that its name or folder begins with.
    """
    data = sorted(name for name in names if suffix_of(name) is not None)
    if isinstance(configs, list) and configs:
        patterns = _card_patterns(configs, request)
        found = [name for name in data if any(fnmatchcase(name, pattern) for pattern in patterns)]
    else:
        inside = [name for name in data if request.config is None or request.config in Path(name).parts[:-1]]
        found = [name for name in inside if _of_split(name, request.split)]
        found = found or (inside if len(inside) == 1 else [])
    if not found:
        raise ArcherError(
            f"{request.repo} has no file for {request}. Its data files are: {_listed(data)}. "
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
    files = chosen.get("data_files", [])
    if isinstance(files, str):
        return [files]
    patterns: list[str] = []
    for entry in files:
        if isinstance(entry, str):
            patterns.append(entry)
        elif entry.get("split") == request.split:
            path = entry.get("path", [])
            patterns += [path] if isinstance(path, str) else path
    return patterns


def _of_split(name: str, split: str) -> bool:
    """Whether a file is of a split: test.jsonl, test2.jsonl, test-00000-of-00002.parquet, test/a.parquet."""
    pattern = re.compile(rf"{re.escape(split)}(\d*[-._].*)?")
    return any(pattern.fullmatch(part) for part in Path(name).parts)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:12]) or "none that can be read"
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
