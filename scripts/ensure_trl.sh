#!/bin/sh
# Makes sure that TRL is there for tests and benchmarks, and prints the folder to put in front of PYTHONPATH.
# It is installed without dependencies, which constraints.txt has: seconds, once per version.
#
#     scripts/ensure_trl.sh [PYTHON]
set -eu

python=${1:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
pinned=$(grep '^trl==' "$root/constraints-trl.txt")
folder="$root/.venv-trl-${pinned#trl==}"

if [ ! -f "$folder/.installed" ]; then
    echo "Installing $pinned into $folder ..." >&2
    fresh="$folder.$$"
    if ! said=$("$python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$fresh" "$pinned" 2>&1); then
        rm -rf "$fresh"
        echo "$said" | tail -n 5 >&2
        echo "TRL could not be installed: the tests of archer/integrations need $pinned from a package index." >&2
        exit 1
    fi
    touch "$fresh/.installed"
    # another process may have been quicker
    mv -T "$fresh" "$folder" 2>/dev/null || rm -rf "$fresh"
fi
printf '%s\n' "$folder"
