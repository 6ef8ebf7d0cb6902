#!/bin/sh
# Makes sure that a Chromium for the viewer's browser tests is there, and prints its path.
# Looks at $CHROMIUM, then at the usual names; installs Debian's package only when none is found.
set -eu

find_chromium() {
    if [ -n "${CHROMIUM:-}" ]; then
        if [ -x "$CHROMIUM" ]; then
            printf '%s\n' "$CHROMIUM"
            return 0
        fi
        echo "CHROMIUM=$CHROMIUM is not a program; point it at a Chromium or Chrome, or unset it." >&2
        exit 1
    fi
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        if command -v "$name" >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
    done
    return 1
}

if find_chromium; then
    exit 0
fi

advice="Install it (apt-get install chromium) or set CHROMIUM to the path of a Chromium or Chrome."
if ! command -v apt-get >/dev/null 2>&1; then
    echo "The viewer's browser tests need Chromium, and this system has no apt-get. $advice" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "The viewer's browser tests need Chromium, and only root can install it here. $advice" >&2
    exit 1
fi
echo "Installing Chromium for the viewer's browser tests ..." >&2
log=$(mktemp)
if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "Chromium could not be installed. $advice" >&2
    exit 1
fi
rm -f "$log"
find_chromium
