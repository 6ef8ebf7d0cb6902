"""Programs that mean harm, really run, with all layers of the sandbox and with one of them missing."""

import os
import shutil
import socket

import pytest

DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(120)
        os._exit(0)
    time.sleep(120)
    os._exit(0)
print("parent leaves")
"""


def test_a_fork_bomb_is_put_out(contained):
    bomb = """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
    """
    assert contained.run(bomb, wall_s=1.0).report.timed_out


def test_no_daemon_survives_its_program(contained):
    outcome = contained.run(DAEMON)
    if contained.layers.seccomp:
        assert "Operation not permitted" in outcome.stderr
    else:
        assert outcome.stdout == b"parent leaves\n"


def test_threads_beyond_the_limit_are_refused(contained):
    swarm = """
        import threading, time
        threading.stack_size(65536)
        for count in range(100_000):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    """
    outcome = contained.run(swarm, wall_s=20.0)
    assert outcome.report.exit_code != 0


@pytest.mark.parametrize(
    "grab",
    [
        "block = bytearray(10**10)",
        "blocks = []\nwhile True: blocks.append(bytearray(2**20))",
        "text = 'x' * 10\nwhile True: text += text",
        "import mmap\nm = [mmap.mmap(-1, 2**24) for _ in range(99)]\nfor each in m: each.write(bytes(2**24))",
        "import resource\ntry: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "except ValueError: pass\nblock = bytearray(10**10)",
    ],
    ids=["at once", "bit by bit", "doubling", "by maps", "after raising its limit"],
)
def test_a_memory_bomb_hits_its_limit(contained, grab):
    outcome = contained.run(grab)
    assert outcome.report.exit_code != 0
    assert not outcome.report.timed_out
    assert outcome.report.peak_memory_bytes <= 128 * 2**20


def test_running_out_of_memory_is_told_from_other_errors(contained):
    assert contained.run("block = bytearray(10**10)").out_of_memory
    assert not contained.run("1 / 0").out_of_memory


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut_off(contained, stream):
    outcome = contained.run(f"import sys\nwhile True: sys.{stream}.write('x' * 4096)", wall_s=20.0)
    assert outcome.output_full
    assert outcome.report.exit_code != 0
    assert len(outcome.stdout) <= 2**20


def test_endless_output_that_ignores_errors_ends_with_its_time(contained):
    outcome = contained.run(
        "import os\nwhile True:\n    try: os.write(1, b'x' * 4096)\n    except OSError: pass", wall_s=1.0
    )
    assert outcome.report.timed_out
    assert len(outcome.stdout) == 2**20


@pytest.mark.parametrize(
    "wait",
    ["while True: pass", "import time; time.sleep(100)", "import threading; threading.Event().wait()"],
    ids=["busy", "asleep", "waiting"],
)
def test_a_program_without_end_is_ended(contained, wait):
    assert contained.run(wait, wall_s=0.5).report.timed_out


def test_ignoring_all_signals_does_not_help(contained):
    stubborn = """
        import signal
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True:
            try:
                while True: pass
            except BaseException:
                pass
    """
    assert contained.run(stubborn, wall_s=0.5).report.timed_out


def test_stopping_itself_does_not_stop_the_judge(contained):
    outcome = contained.run(
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('on')", wall_s=1.0
    )
    assert outcome.report.timed_out or outcome.stdout == b"on\n"  # the first process of a namespace goes on


def test_other_processes_cannot_be_signalled(contained):
    # SIGURG does nothing to a process that does not ask for it: harmless even if it got through.
    attempt = f"""
        import os, signal
        for target in ({os.getpid()}, {os.getppid()}, {contained.sandbox._process.pid}, -{os.getpgrp()}, -1):
            try:
                os.kill(target, signal.SIGURG)
            except OSError as error:
                print(type(error).__name__)
            else:
                print("sent")
    """
    answers = contained.prints(attempt).split()
    if contained.layers.seccomp:
        assert answers == ["PermissionError"] * 5
    else:  # -1 reaches what is in the namespace: nobody
        assert answers[:4] == ["ProcessLookupError"] * 4


def test_limits_and_processors_of_other_processes_cannot_be_changed(contained):
    # Asking and giving back what is there already: harmless even if it got through.
    attempt = f"""
        import os, resource
        for attempt in (
            lambda: resource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE),
            lambda: os.sched_setaffinity({os.getpid()}, {os.sched_getaffinity(0)!r}),
            lambda: os.setpriority(os.PRIO_PROCESS, {os.getpid()}, {os.getpriority(os.PRIO_PROCESS, 0)}),
        ):
            try:
                attempt()
            except OSError:
                print("refused")
    """
    assert contained.prints(attempt).split() == ["refused"] * 3


def test_a_descriptor_cannot_be_made_to_signal_another_process(contained):
    # A descriptor's owner gets a signal when there is something to read; SIGURG would do no harm.
    attempt = f"""
        import fcntl, os, signal
        reading, writing = os.pipe()
        for command, argument in ((fcntl.F_SETOWN, {os.getpid()}), (fcntl.F_SETSIG, signal.SIGURG)):
            try:
                fcntl.fcntl(reading, command, argument)
            except OSError:
                print("refused")
    """
    answers = contained.prints(attempt).split()
    assert answers == ["refused"] * (2 if contained.layers.seccomp else 1)


def test_killing_its_parent_and_its_group_leaves_the_judge_alone(contained):
    contained.run("import os; os.kill(os.getppid() or 999_999, 9)")
    contained.run("import os; os.killpg(0, 9)")
    assert contained.prints("print('next')") == "next"


def test_files_outside_cannot_be_written(contained, open_folder, hostile_name):
    precious = open_folder / "precious"
    precious.write_text("as it was")
    precious.chmod(0o666)
    attempts = [
        str(precious),
        str(open_folder / "new"),
        hostile_name("new"),
        "/dev/shm/hostile-new",
        "/etc/hostile",
    ]
    contained.run(f"""
        import os, shutil
        for path in {attempts!r}:
            for attempt in (
                lambda: open(path, "w").write("hostile"), lambda: os.remove(path),
                lambda: os.truncate(path, 0), lambda: os.rename(path, path + "x"),
                lambda: os.symlink("/etc/passwd", path + "y"),
                lambda: os.chmod(path, 0), lambda: os.mkdir(path + "d"),
            ):
                try:
                    attempt()
                except OSError:
                    pass
    """)
    assert precious.read_text() == "as it was"
    assert precious.stat().st_mode & 0o777 == 0o666
    assert [each.name for each in open_folder.iterdir()] == ["precious"]
    assert not any(os.path.lexists(path + end) for path in attempts[2:] for end in ("", "x", "y", "d"))


def test_the_python_installation_cannot_be_changed(contained):
    attempt = """
        import os, json
        for path in (json.__file__, os.path.dirname(json.__file__) + "/hostile.py"):
            try:
                open(path, "a")
            except OSError:
                print("refused")
    """
    assert contained.prints(attempt).split() == ["refused", "refused"]


def test_secrets_cannot_be_read(contained, open_folder, monkeypatch):
    monkeypatch.setenv("HOSTILE_TEST_TOKEN", "s3cret-in-environment")
    secret = open_folder / "secret"
    secret.write_text("s3cret-in-file")
    secret.chmod(0o644)
    pids = [os.getpid(), contained.sandbox._process.pid, 1, "self"]
    found = contained.run(f"""
        import os, glob
        seen = [str(os.environ)]
        paths = [{str(secret)!r}, "/etc/passwd", "/etc/shadow", *glob.glob("/home/*/*")]
        for pid in {pids!r}:
            paths += [f"/proc/{{pid}}/{{name}}" for name in ("environ", "cmdline", "maps", "mem", "status")]
        for path in paths:
            try:
                seen.append(open(path, "rb").read(1000).decode(errors="replace"))
            except OSError:
                pass
        print(len(seen))
        print(*seen)
    """)
    assert found.stdout.splitlines()[0] == b"1", found  # its own clean environment
    assert b"s3cret" not in found.stdout


def test_no_descriptor_of_the_judge_is_inherited(contained):
    look = """
        import os
        for number in range(4096):
            try:
                os.fstat(number)
            except OSError:
                continue
            print(number)
    """
    assert contained.prints(look).split() == ["0", "1", "2", "3"]  # 3: /dev/null, or the examiner's channel


def test_the_network_is_out_of_reach(contained):
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 0))
        listener.setblocking(False)
        datagrams.setblocking(False)
        outcome = contained.run(f"""
            import ctypes, socket
            for kind, port in (
                (socket.SOCK_STREAM, {listener.getsockname()[1]}),
                (socket.SOCK_DGRAM, {datagrams.getsockname()[1]}),
            ):
                try:
                    with socket.socket(type=kind) as out:
                        out.settimeout(2)
                        out.connect(("127.0.0.1", port))
                        out.send(b"hello")
                        print("sent")
                except OSError as error:
                    print("refused")
        """)
        assert outcome.stdout.split() == [b"refused", b"refused"]
        with pytest.raises(BlockingIOError):
            listener.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(100)


def test_an_abstract_socket_of_the_host_is_out_of_reach(contained):
    name = f"\0archer-hostile-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        attempt = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        assert contained.run(attempt).report.exit_code != 0


def test_the_disk_cannot_be_filled(contained):
    free = shutil.disk_usage("/").free
    outcome = contained.run("""
        written = 0
        try:
            for number in range(10_000):
                with open(f"file{number}", "wb") as file:
                    file.write(bytes(2**19))
                    written += 2**19
        except OSError:
            print(written)
    """)
    assert outcome.report.exit_code == 0
    assert int(outcome.stdout) <= 8 * 2**20
    assert shutil.disk_usage("/").free > free - 2**30  # others write too; ten thousand files would be 5 GB


def test_many_empty_files_hit_a_limit(contained):
    outcome = contained.run("""
        count = 0
        try:
            while count < 100_000:
                open(f"file{count}", "w").close()
                count += 1
        except OSError:
            pass
        print(count)
    """)
    assert int(outcome.stdout) < 5000


@pytest.mark.parametrize(
    "dive",
    [
        "def f(): return f()\nf()",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        "import sys; sys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.abort()",
        "import sys; print(sys.getsizeof(9**9**9))",
        "print(10**10**6)",
        "import sys; sys.set_int_max_str_digits(0); print(7**(10**8))",
    ],
    ids=["recursion", "no limit", "in C", "segfault", "abort", "power", "digits", "slow digits"],
)
def test_a_crash_is_the_programs_own(box, dive):
    outcome = box.run(dive, wall_s=1.0)
    assert outcome.report.exit_code != 0
    assert box.prints("print('next')") == "next"


def test_privileges_cannot_be_regained(contained):
    climb = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for attempt in (
            lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.chroot("/"),
            lambda: os.mknod("device", 0o600 | 0o060000, os.makedev(7, 0)), lambda: os.nice(-5),
        ):
            try:
                attempt()
            except OSError:
                print("refused")
            else:
                print("done")
        new_user, new_mounts = 0x10000000, 0x00020000
        libc.unshare(new_user | new_mounts)  # may work, and gives rights over nothing
        print("refused" if libc.mount(b"none", b"/", b"tmpfs", 0, None) else "done")
    """
    answers = contained.prints(climb).split()
    assert answers[-4:] == ["refused"] * 4
    if contained.layers.own_user:
        assert answers == ["refused"] * 6


def test_nothing_passes_from_one_program_to_the_next(contained):
    contained.run("""
        import json, os, builtins
        builtins.print = None
        json.loads = None
        for path in ("left", "/tmp/left", "/box/left"):
            try:
                open(path, "w").write("behind")
            except OSError:
                pass
    """)
    look = """
        import json, os
        print(json.loads("1"), any(os.path.exists(path) for path in ("left", "/tmp/left", "/box/left")))
    """
    assert contained.prints(look) == "1 False"
