"""Whether W&B can start without asking: it needs a key, or to stay offline."""

import os
from configparser import ConfigParser
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

SERVER = "https://api.wandb.ai"
WITHOUT_A_KEY = ("offline", "disabled", "dryrun")
KEY_VARIABLES = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def wandb_can_start() -> bool:
    """Return whether there is a key, in the environment or in netrc, or none is needed."""
    settings = _settings()
    mode = os.environ.get("WANDB_MODE") or settings.get("mode")
    if mode in WITHOUT_A_KEY or any(os.environ.get(name) for name in KEY_VARIABLES):
        return True
    server = os.environ.get("WANDB_BASE_URL") or settings.get("base_url") or SERVER
    return urlsplit(server).hostname in _hosts()


def _settings() -> dict[str, str]:
    """What `wandb offline` and `wandb login --host` leave: settings of the user, then of this folder."""
    user = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
    here = Path(os.environ.get("WANDB_DIR") or ".") / "wandb"
    parser = ConfigParser(interpolation=None)
    parser.read([user / "settings", here / "settings"])
    return dict(parser["default"]) if parser.has_section("default") else {}


def _hosts() -> set[str]:
    """Return the hosts that netrc has a password for."""
    named = os.environ.get("NETRC")
    files = [Path(named)] if named else [Path("~/.netrc"), Path("~/_netrc")]
    found: set[str] = set()
    for file in files:
        try:
            found |= netrc(file.expanduser()).hosts.keys()
        except (OSError, NetrcParseError):  # a file that cannot be read holds no key
            continue
    return found
