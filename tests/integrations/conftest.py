import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder, under every import mode of pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600  # far beyond any honest run on busy cores


@pytest.fixture(scope="session")
def trl_path() -> str:
    """The folders to put in front of a process's path so that it has TRL; a failure where there is none."""
    script = [str(ROOT / "scripts/ensure_trl.sh"), sys.executable]
    done = subprocess.run(script, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"these tests need TRL: {done.stderr}")
    return os.pathsep.join([done.stdout.strip(), str(ROOT)])


@pytest.fixture(scope="session")
def in_trl(trl_path) -> Callable[..., str]:
    """`in_trl(script, *arguments, ranks=1)`: run a script beside TRL, in one process or several."""

    def run(*command: object, ranks: int = 1, port: int = 29511) -> str:
        processes = []
        for rank in range(ranks):
            variables = {**os.environ, "PYTHONPATH": trl_path, "OMP_NUM_THREADS": "1"}
            if ranks > 1:
                place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
                place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                variables |= {name: str(value) for name, value in place.items()}
            processes.append(
                subprocess.Popen(
                    [sys.executable, *map(str, command)],
                    env=variables,
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            said = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert all(process.returncode == 0 for process in processes), "\n".join(said)[-6000:]
        return said[0]

    return run


@pytest.fixture(scope="session")
def trl_runs(in_trl) -> Callable[..., None]:
    """`trl_runs(folder, fixed, runs, ranks=1)`: the runs of `trl_run.py`, all in one process."""

    def run(folder: Path, fixed: Path, runs: list[dict], ranks: int = 1, port: int = 29511) -> None:
        file = folder / "runs.json"
        file.write_text(json.dumps(runs))
        in_trl(ROOT / "tests/integrations/trl_run.py", fixed, file, ranks=ranks, port=port)

    return run
