"""docs/scaling.md shows what the estimates of the code say today."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_page_are_those_of_the_code():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "scaling.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (ROOT / "docs" / "scaling.md").read_text(), (
        "python benchmarks/scaling.py --write"
    )
