"""A sandbox for programs.

    with Sandbox(limits) as sandbox:
        outcome = sandbox.run_script("print(int(input()) + 1)", stdin="41", wall_s=5.0)

Starting one takes tens of milliseconds, a run in it a few. Nothing of it lies on disk: input, output and jobs
are memory files, whose size the kernel bounds, and the private folder of a run vanishes with it.

This file is the sandbox seen from outside. The others run inside it, on the standard library alone:

zygote.py       the inner processes: one that is copied for every run, and the supervisor of a run
confinement.py  what programs give up and what they see;  kernel.py, seccomp.py: the means
program.py      runs a program: a script, or definitions to be called
examiner.py     runs the tests on a program that lives in another sandbox
testcode.py     reads test code: which names are under test, and which it tests with
subject.py      the examiner's end of the link to the program;  link.py: what both ends share
remote.py       what stands for an object of the other process, and what can be done with it
values.py       what the two may say to each other;  agreement.py: when a value is the expected one
prelude.py      what programs and tests find defined
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from archer.errors import ArcherError
from archer.rewards.sandbox.confinement import Layers, ProgramLimits, RunReport, Setup

_START_LIMIT_S = 60.0
_GRACE_S = 30.0  # beyond a run's own limit: for a machine that is very busy
_KEPT_ERROR_BYTES = 2000
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/box",
    "TMPDIR": "/box",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of sets of strings is the same in every run
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_BOOT = """
import sys, types
for name, path in {packages!r}:  # without the packages' own __init__ files, which import far more
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module
from archer.rewards.sandbox.zygote import main
main({control}, {setup!r})
"""


class SandboxError(Exception):
    """The sandbox itself failed; the program is not to blame."""


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended and what it printed."""

    report: RunReport
    stdout: bytes
    stderr: str  # the end of its error output
    output_full: bool  # whether it printed all it may print, so that the rest is missing

    @property
    def out_of_memory(self) -> bool:
        """Whether it ran out of memory, as far as one can tell."""
        return self.report.exit_code != 0 and self.stderr.rstrip().endswith("MemoryError")


@dataclass(frozen=True)
class ProgramRun:
    """A run under way."""

    _lifeline: socket.socket
    _stdout: int
    _stderr: int
    _wall_s: float
    _output_bytes: int

    def finish(self) -> RunOutcome:
        """Wait for the end of the run, which its limits bring about, and return its outcome."""
        self._lifeline.settimeout(self._wall_s + _GRACE_S)
        try:
            reply = json.loads(self._lifeline.recv(65536) or b"{}")
        except TimeoutError:
            reply = {}
        if "report" not in reply:
            problem = reply.get("failure", "the run ended without a report")
            raise SandboxError(f"{problem} {_tail(self._stderr)}".strip())
        size = os.fstat(self._stdout).st_size
        full = max(size, os.fstat(self._stderr).st_size) >= self._output_bytes
        printed = os.pread(self._stdout, size, 0)
        return RunOutcome(RunReport(**reply["report"]), printed, _tail(self._stderr), full)

    def stop(self) -> None:
        """Have the program killed if it still runs; `finish` then returns at once."""
        self._lifeline.shutdown(socket.SHUT_WR)


def _tail(file: int) -> str:
    start = max(0, os.fstat(file).st_size - _KEPT_ERROR_BYTES)
    return os.pread(file, _KEPT_ERROR_BYTES, start).decode(errors="replace")


class Sandbox:
    """A prepared place where programs run, each on its own; the layers it has are in `layers`."""

    def __init__(self, limits: ProgramLimits, without: Sequence[str] = ()) -> None:
        """Start with all layers this machine gives, or `without` some: `namespaces`, `own_user`, ..."""
        if sys.platform != "linux":
            raise ArcherError(
                "Model-written code is run on Linux only: its sandbox is made of what Linux's kernel offers."
            )
        self._limits = limits
        try:
            self.layers = self._start(tuple(without))
        except SandboxError as error:
            self.close()
            if "namespaces" in without:
                raise
            weaker = self._start((*without, "namespaces"))
            reasons = (str(error), *(each for each in weaker.missing if not each.startswith("namespaces")))
            self.layers = replace(weaker, missing=reasons)

    def _start(self, without: tuple[str, ...]) -> Layers:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        installed = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
        setup = json.dumps(asdict(Setup(self._limits, installed, without)))
        folder = Path(__file__).parent
        packages = [
            ("archer", str(folder.parents[1])),
            ("archer.rewards", str(folder.parent)),
            ("archer.rewards.sandbox", str(folder)),
        ]
        boot = _BOOT.format(packages=packages, control=theirs.fileno(), setup=setup)
        libraries = os.environ.get(
            "LD_LIBRARY_PATH"
        )  # where Python's own may lie; no more of our environment
        with theirs:
            self._process = subprocess.Popen(
                # No site packages' start-up files, no user site, no current folder on the path.
                [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", boot],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_ENVIRONMENT | ({"LD_LIBRARY_PATH": libraries} if libraries else {}),
                cwd="/",
            )
        self._control.settimeout(_START_LIMIT_S)
        try:
            answer = json.loads(self._control.recv(65536) or b'{"refused": "it ended at its start"}')
        except TimeoutError:
            answer = {"refused": f"it did not start within {_START_LIMIT_S:.0f} s"}
        self._control.settimeout(None)
        if "refused" in answer:
            raise SandboxError(answer["refused"])
        # A module that was not imported beforehand: shows that programs can read Python's library.
        trial = self.run_script("import colorsys; print(colorsys.__name__)", "", _START_LIMIT_S)
        if trial.stdout != b"colorsys\n":
            raise SandboxError(f"a first program failed in it: {trial.stderr}")
        return Layers(**{**answer["layers"], "missing": tuple(answer["layers"]["missing"])})

    def run_script(self, source: str, stdin: str, wall_s: float) -> RunOutcome:
        """Run a program as a script on this input, for at most `wall_s` seconds."""
        with self.start("script", {"source": source}, wall_s, stdin=stdin) as run:
            return run.finish()

    @contextlib.contextmanager
    def start(
        self, role: str, job: dict[str, Any], wall_s: float, stdin: str = "", channel: int | None = None
    ) -> Iterator[ProgramRun]:
        """Start a run (`script`, `serve` or `examine`); leaving the context ends it."""
        with contextlib.ExitStack() as files:
            given = [
                _memory_file(files, json.dumps(job).encode()),
                _memory_file(files, stdin.encode(errors="surrogatepass")),
            ]
            printed = [_memory_file(files), _memory_file(files)]
            if channel is None:
                channel = os.open("/dev/null", os.O_RDONLY)
                files.callback(os.close, channel)
            lifeline, theirs = socket.socketpair()
            with lifeline:
                request = json.dumps({"role": role, "wall_s": wall_s}).encode()
                with theirs:
                    socket.send_fds(self._control, [request], [*given, *printed, channel, theirs.fileno()])
                yield ProgramRun(lifeline, printed[0], printed[1], wall_s, self._limits.output_bytes)

    def close(self) -> None:
        """End the sandbox and whatever runs in it."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _memory_file(files: contextlib.ExitStack, content: bytes = b"") -> int:
    file = os.memfd_create("archer")
    files.callback(os.close, file)
    with open(file, "wb", closefd=False) as writer:
        writer.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return file
