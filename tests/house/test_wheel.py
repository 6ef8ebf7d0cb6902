"""The wheel, built from the source archive, in an environment that has nothing else of the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import archer

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "archer"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in")
SOURCES += ("constraints.txt", "constraints-gpu.txt")
BUILD = "import sys; from setuptools import build_meta as b; print(b.{hook}(sys.argv[1]))"

pytestmark = pytest.mark.slow


def build(hook: str, source: Path, target: Path) -> Path:
    """Call the build backend in `source`, as pip does, with the setuptools that is here."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(hook=hook), str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return target / done.stdout.splitlines()[-1]


def of_the_package(folder: Path) -> set[str]:
    """What belongs to the package in a folder: all but what Python leaves there."""
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".DS_Store"
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """The source archive, from a copy: building leaves folders behind, and old ones end up in wheels."""
    folder = tmp_path_factory.mktemp("archive")
    copy = folder / "copy"
    shutil.copytree(PACKAGE, copy / "archer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, copy / name)
    return build("build_sdist", copy, folder)


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return build("build_wheel", unpacked, folder)


def test_the_source_archive_holds_what_its_readers_look_for(archive):
    with tarfile.open(archive) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert set(SOURCES) <= inside


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert of_the_package(PACKAGE) - names == set()
    own = {name for name in names if not name.startswith(f"archer_rl-{archer.__version__}.dist-info/")}
    assert own - of_the_package(PACKAGE) == set(), "nothing but the package is installed"


def test_the_licences_of_what_is_vendored_come_along(wheel):
    with zipfile.ZipFile(wheel) as packed:
        licences = {Path(name).name for name in packed.namelist() if ".dist-info/licenses/" in name}
    vendored = {path.name for path in (PACKAGE / "viewer/static/vendor").glob("*.LICENSE.txt")}
    assert licences == {"LICENSE"} | vendored


class Installed:
    """A virtual environment with the wheel, and the packages it needs from where the tests run."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        venv.create(folder / "venv", with_pip=False)
        others = folder / "others"
        others.mkdir()
        for name in ("purelib", "platlib"):
            for path in Path(sysconfig.get_paths()[name]).iterdir():
                of_the_checkout = path.name.startswith(("archer_rl", "__editable__")) or path.suffix == ".pth"
                if not of_the_checkout and not (others / path.name).exists():
                    (others / path.name).symlink_to(path)
        site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        (site / "others.pth").write_text(f"{others}\n")
        # Everything it asks for, the extra included, has to be there already: no index is looked at.
        pip = [sys.executable, "-m", "pip", f"--python={self.bin / 'python'}", "install", "--no-index"]
        done = subprocess.run([*pip, f"{wheel}[viewer]"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def environment(self) -> dict[str, str]:
        hidden = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "VIRTUAL"))}
        return hidden | {"HOME": str(self.folder), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.bin / "archer", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, status: int = 0) -> str:
        process = self.start(*arguments)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == status, said
        return said


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module")
def run(installed) -> Path:
    """A run of two steps by the installed command, with both traces."""
    installed.run(
        "train",
        "trainer.experiment_name=first",
        "trainer.total_training_steps=2",
        "data.train_batch_size=4",
        "data.val_max_samples=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        "engine.threads=1",
        "engine.device=cpu",
    )
    return installed.folder / "output" / "archer" / "first"


def test_the_installed_package_is_the_one_that_runs(installed):
    code = "import archer; print(archer.__file__, archer.__version__)"
    said = subprocess.run(
        [installed.bin / "python", "-c", code],
        cwd=installed.folder,
        env=installed.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    place, version = said.split()
    assert Path(place).is_relative_to(installed.folder / "venv") and version == archer.__version__


def test_it_trains(run):
    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == 2
    assert len((run / "metrics.jsonl").read_text().splitlines()) >= 2


def test_it_reads_what_it_trained(installed, run):
    assert "whole" in installed.run("trace", "check", str(run))
    installed.run("export", "group.html", "--trace-dir", str(run), "--step", "2")
    assert (installed.folder / "group.html").stat().st_size > 100_000


@pytest.fixture
def demo(installed) -> Iterator[str]:
    """The address of `archer view --demo`."""
    process = installed.start("view", "--demo", "--port", "0")
    try:
        assert process.stdout is not None
        deadline = time.monotonic() + 60
        said = ""
        while "http://" not in said:
            line = process.stdout.readline()
            assert line and time.monotonic() < deadline, said
            said = line.strip()
        yield said
    finally:
        process.terminate()
        process.wait(20)


def fetched(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read()


def test_it_shows_the_shipped_traces(demo):
    base = demo.partition("#")[0].rstrip("/")
    assert b"<title>" in fetched(base + "/")
    for name in ("main.js", "vendor/katex.min.js", "icon.svg"):
        assert fetched(f"{base}/static/{name}") == (PACKAGE / "viewer/static" / name).read_bytes()
    runs = json.loads(fetched(f"{base}/api/runs"))
    assert "gsm8k-qwen2.5-coder-0.5b" in json.dumps(runs)
