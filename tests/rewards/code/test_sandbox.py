"""What a sandbox gives to honest programs, what it says of itself, and how it ends."""

import signal
import socket
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from archer.errors import ArcherError
from archer.rewards.config import CodeConfig
from archer.rewards.rules import code
from archer.rewards.sandbox import Sandbox, seccomp
from archer.rewards.sandbox.confinement import Layers

ROOT = Path(__file__).parents[3]
NOTHING = Layers(namespaces=False, own_user=False, landlock=0, seccomp=False)


def test_a_script_reads_its_input_and_prints(each_box):
    assert each_box.prints("print(int(input()) + int(input()))", stdin="40\n2\n") == "42"
    assert each_box.prints("import sys; print(sys.stdin.read().upper())", stdin="grüße") == "GRÜSSE"
    assert each_box.prints("import sys; sys.stdout.buffer.write(open(0, 'rb').read())", stdin="x y") == "x y"


def test_a_script_is_the_main_module(box):
    assert box.prints("if __name__ == '__main__': print('main')") == "main"


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("exit()", 0),
        ("import sys; sys.exit(3)", 3),
        ("quit('sorry')", 1),
        ("1 / 0", 1),
        ("import os; os._exit(7)", 7),
        ("def broken(:", 1),
        ("raise KeyboardInterrupt", 1),
        ("import sys; sys.stdout = None", 0),
        ("import sys; sys.stdout.close()", 0),
    ],
)
def test_exit_codes_are_those_of_python(box, ending, code):
    assert box.run(f"print('before')\n{ending}" if "def" not in ending else ending).report.exit_code == code


def test_output_is_written_at_the_end_as_python_does(box):
    late = """
        import atexit, threading, time
        atexit.register(print, "last")
        threading.Thread(target=lambda: (time.sleep(0.05), print("from a thread"))).start()
        print("first", end=" ")
    """
    assert box.prints(late) == "first from a thread\nlast"


def test_the_idioms_of_contest_programs_work(box):
    program = """
        import sys, threading
        sys.setrecursionlimit(10**6)
        threading.stack_size(2**25)
        def main():
            data = sys.stdin.buffer.read().split()
            def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
            print(depth(int(data[0])), pow(3, 4, 5))
        thread = threading.Thread(target=main)
        thread.start()
        thread.join()
    """
    assert box.prints(program, stdin="20000") == "20000 1"


def test_names_that_judges_have_ready_are_defined_but_no_builtin_is_replaced(box):
    program = "print(List, Counter('aab')['a'], gcd(4, 6), heappop([1]), pow(2, 5, 7), inf)"
    assert box.prints(program) == "typing.List 2 2 1 4 inf"


def test_the_private_folder_can_be_written_and_starts_empty(box):
    if not box.layers.namespaces:
        pytest.skip("without namespaces programs write nowhere")
    program = (
        "import os, tempfile; print(os.listdir()); open('note', 'w').write('x'); "
        "print(open(os.path.join(tempfile.gettempdir(), 'note')).read())"
    )
    for _ in range(2):
        assert box.prints(program) == "[]\nx"


def test_the_order_of_sets_is_the_same_in_every_run(box):
    program = "print(*{str(number) for number in range(50)})"
    assert box.prints(program) == box.prints(program)


def test_two_runs_at_once_do_not_see_each_other(box):
    program = {"source": "import os; print(os.getpid(), os.listdir('.') if os.getpid() == 1 else [])"}
    with box.sandbox.start("script", program, 5.0) as one, box.sandbox.start("script", program, 5.0) as other:
        first, second = one.finish().stdout, other.finish().stdout
    if box.layers.namespaces:
        assert first == second == b"1 []\n"


def test_a_run_can_be_stopped(each_box):
    with each_box.sandbox.start("script", {"source": "import time; time.sleep(60)"}, 60.0) as run:
        run.stop()
        report = run.finish().report
    assert (report.exit_code, report.timed_out) == (-signal.SIGKILL, False)


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("without", [(), ("seccomp",), ("namespaces",)], ids=str)
def test_programs_end_with_their_sandbox(without, end, make_box, sandboxed, gone):
    box = make_box(without)
    inner = box.inner_processes()
    ours, theirs = socket.socketpair()
    asleep = {"source": "import os, time; os.write(3, b'up'); time.sleep(60)"}
    with ours, theirs, box.sandbox.start("script", asleep, 60.0, channel=theirs.fileno()):
        assert ours.recv(2) == b"up"
        running = sandboxed()
        assert len(running - inner) == 2  # the program and its supervisor
        if end == "kill":
            for pid in inner:
                psutil.Process(pid).kill()
        else:
            box.sandbox.close()
        assert gone(running)


def test_without_any_layer_limits_hold_and_children_end_with_their_program(make_box, sandboxed, gone):
    box = make_box(("namespaces", "own_user", "landlock", "seccomp"))
    assert not box.layers.isolated
    outcome = box.run("""
        import os, time
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(60)
                os._exit(0)
        print("leaves", flush=True)
    """)
    assert outcome.stdout == b"leaves\n"
    assert sandboxed() == box.inner_processes()
    assert box.run("block = bytearray(10**10)").out_of_memory
    assert box.run("while True: print('x' * 1000)").output_full
    assert box.run("import time; time.sleep(60)", wall_s=0.2).report.timed_out


def test_an_ordinary_user_gets_namespaces_too(tmp_path):
    """Run as user 1000 without any capability, in a user namespace in which only that user exists."""
    script = """
        import os
        from pathlib import Path
        from archer.rewards.sandbox import kernel
        from archer.rewards.rules.code import program_limits
        from archer.rewards.config import CodeConfig
        from archer.rewards.sandbox import Sandbox

        user, group = os.getuid(), os.getgid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"1000 {user} 1")
        Path("/proc/self/gid_map").write_text(f"1000 {group} 1")
        kernel.empty_bounding_set()
        kernel.drop_capabilities()
        assert os.getuid() == 1000
        with Sandbox(program_limits(CodeConfig())) as sandbox:
            layers = sandbox.layers
            program = "import os; print(os.getuid(), os.listdir('/box'), os.path.exists('/proc'))"
            print(layers.namespaces, layers.own_user, sandbox.run_script(program, "", 5.0).stdout.decode())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr:
        pytest.skip("this machine has no user namespaces")
    assert done.stdout.split() == ["True", "False", "65534", "[]", "False"], done.stderr


def test_layers_are_described_with_what_is_missing_and_why():
    layers = Layers(True, False, 7, False, missing=("seccomp: too old a kernel",))
    assert layers.describe() == (
        "layers: namespaces, Landlock 7; missing: own user, seccomp (seccomp: too old a kernel); "
        "resource limits always"
    )


def test_isolation_means_namespaces_or_filters_for_both_network_and_files():
    assert not NOTHING.isolated
    assert not replace(NOTHING, seccomp=True).isolated
    assert not replace(NOTHING, landlock=7).isolated
    assert not replace(NOTHING, own_user=True).isolated
    assert replace(NOTHING, namespaces=True).isolated
    assert replace(NOTHING, seccomp=True, landlock=1).isolated
    assert replace(NOTHING, seccomp=True, own_user=True).isolated


def test_a_weak_sandbox_is_refused_unless_it_is_allowed(monkeypatch, caplog):
    everything = ("namespaces", "own_user", "landlock", "seccomp")
    monkeypatch.setattr(code, "Sandbox", lambda limits: Sandbox(limits, everything))
    with pytest.raises(ArcherError, match="allow_weak_sandbox=true"):
        code.check_sandbox(CodeConfig())
    code.check_sandbox(CodeConfig(allow_weak_sandbox=True))
    assert "weak" in caplog.text


def test_memory_too_small_for_a_sandbox_is_refused():
    with pytest.raises(ArcherError, match="memory_mb"):
        CodeConfig(memory_mb=8)


def test_the_filter_has_jumps_that_fit():
    program = seccomp.build_filter(own_pid=1)
    steps = [program[start : start + 8] for start in range(0, len(program), 8)]
    for place, step in enumerate(steps):
        assert place + 1 + max(step[2], step[3]) < len(steps) or step[:2] == b"\x06\x00"
