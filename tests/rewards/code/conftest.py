"""Sandboxes to run hostile programs in, and a look around after each of them.

Every program here is safe for the machine even if a layer under test does nothing: limits on memory, output,
processes and time are small, and no program signals, writes or connects where that could do harm.
"""

import contextlib
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from archer.rewards.code import Tests
from archer.rewards.code.grade import CodeVerdict, grade
from archer.rewards.config import CodeConfig
from archer.rewards.sandbox import RunOutcome, Sandbox
from archer.rewards.sandbox.confinement import ProgramLimits

LIMITS = ProgramLimits(memory_bytes=128 * 2**20, output_bytes=2**20, folder_bytes=8 * 2**20, processes=12)
ALL_LAYERS: tuple[str, ...] = ()
WITHOUT_FILTER = ("seccomp",)
WITHOUT_NAMESPACES = ("namespaces",)
LIMITS_ONLY = ("namespaces", "own_user", "landlock", "seccomp")


def name_of(without: tuple[str, ...]) -> str:
    return "without " + " ".join(without) if without else "all layers"


class Box:
    """A sandbox and shorthands for tests."""

    def __init__(self, without: tuple[str, ...] = ALL_LAYERS) -> None:
        self.sandbox = Sandbox(LIMITS, without)
        self.layers = self.sandbox.layers

    def run(self, source: str, stdin: str = "", wall_s: float = 10.0) -> RunOutcome:
        return self.sandbox.run_script(textwrap.dedent(source), stdin, wall_s)

    def prints(self, source: str, stdin: str = "", wall_s: float = 10.0) -> str:
        """Run a program that must end well, and return what it printed."""
        outcome = self.run(source, stdin, wall_s)
        assert outcome.report.exit_code == 0, outcome
        return outcome.stdout.decode().strip()

    def grade(self, program: str, tests: Tests, **settings: object) -> CodeVerdict:
        config = CodeConfig(**{"test_timeout_s": 10.0, **settings})
        return grade(textwrap.dedent(program), tests, config, self.sandbox)

    def inner_processes(self) -> set[int]:
        """The processes of the sandbox itself, which stay."""
        launcher = self.sandbox._process.pid
        if not self.layers.namespaces:
            return {launcher}
        return {launcher, psutil.Process(launcher).children()[0].pid}


@pytest.fixture(scope="session")
def box() -> Iterator[Box]:
    """A sandbox with all layers that the machine gives."""
    shared = Box()
    yield shared
    shared.sandbox.close()


@pytest.fixture(
    scope="session",
    params=[ALL_LAYERS, WITHOUT_FILTER, WITHOUT_NAMESPACES],
    ids=name_of,
)
def each_box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """Sandboxes with all layers and with one of them missing: the others must hold by themselves."""
    shared = Box(request.param)
    if not shared.layers.isolated:
        shared.sandbox.close()
        pytest.skip(f"this machine gives too little: {shared.layers.describe()}")
    yield shared
    shared.sandbox.close()


def sandboxed_processes() -> set[int]:
    """Return all processes that came out of a sandbox of this process, and all orphans of any."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"rewards.sandbox.zygote" in (entry / "cmdline").read_bytes():
                parents = [parent.pid for parent in psutil.Process(int(entry.name)).parents()]
                if os.getpid() in parents or parents[:1] == [1]:
                    found.add(int(entry.name))
        except (OSError, psutil.Error):  # it ended meanwhile
            continue
    return found


def wait_for_no_other(expected: set[int], limit_s: float = 20.0) -> set[int]:
    """Return the sandboxed processes beyond `expected`, once there are none or the time is up."""
    end = time.monotonic() + limit_s
    while (others := sandboxed_processes() - expected) and time.monotonic() < end:
        time.sleep(0.01)
    return others


@pytest.fixture
def contained(each_box: Box) -> Iterator[Box]:
    """A sandbox that must be as good as new after the test: it works, and nothing is left behind."""
    before = sandboxed_processes()
    yield each_box
    assert each_box.prints("print(input())", stdin="still here") == "still here"
    assert not wait_for_no_other(before | each_box.inner_processes())
    assert not [*Path("/tmp").glob("hostile-*"), *Path("/dev/shm").glob("hostile-*")]


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """Return a folder that every user may write to: only the sandbox keeps a program out of it."""
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:3]:
        with contextlib.suppress(PermissionError):  # another user's, who has opened it or not
            parent.chmod(parent.stat().st_mode | 0o755)
    return tmp_path


@pytest.fixture
def hostile_name(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a maker of names under /tmp that no other test uses."""
    unique = tmp_path_factory.mktemp("hostile").name

    def make(name: str) -> str:
        return f"/tmp/hostile-{os.getpid()}-{unique}-{name}"

    return make


@pytest.fixture
def make_box() -> Iterator[Callable[[tuple[str, ...]], Box]]:
    """Return a maker of sandboxes without some layers, closed after the test."""
    made: list[Box] = []

    def make(without: tuple[str, ...]) -> Box:
        made.append(Box(without))
        return made[-1]

    yield make
    for each in made:
        each.sandbox.close()


@pytest.fixture
def sandboxed() -> Callable[[], set[int]]:
    """Return a function that gives the sandboxed processes that there are beyond those before the test."""
    before = sandboxed_processes()
    return lambda: sandboxed_processes() - before


@pytest.fixture
def gone() -> Callable[[set[int]], bool]:
    """Return a function that waits, up to a generous limit, for processes to end."""

    def wait(pids: set[int], limit_s: float = 20.0) -> bool:
        end = time.monotonic() + limit_s
        while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < end:
            time.sleep(0.01)
        return not left

    return wait


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
