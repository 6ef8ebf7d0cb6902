"""The one Chromium of the viewer's tests, benchmark and screenshots: where it is and how it is started."""

import subprocess
from pathlib import Path

from playwright.sync_api import Browser, Playwright

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ENSURE = Path(__file__).parent / "ensure_chromium.sh"


class NoChromiumError(RuntimeError):
    """No Chromium was found and none could be installed; the message says what to do."""


def launch(playwright: Playwright) -> Browser:
    """Debian's Chromium or the one of `$CHROMIUM`, without a window."""
    found = subprocess.run(["sh", str(ENSURE)], capture_output=True, text=True, check=False)
    if found.returncode:
        raise NoChromiumError(found.stderr.strip())
    return playwright.chromium.launch(executable_path=found.stdout.strip(), args=FLAGS)
