"""Rewards that loop, crash, hog memory or breed: each costs its own response and nothing else."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from archer.rewards import RewardConfig, RewardRequest, RewardScorer

POISON = """
    import os, subprocess, sys, time

    def compute_score(data_source, solution_str, ground_truth, extra_info):
        if solution_str == "loop":
            while True:
                pass
        if solution_str == "native loop":
            10 ** 10 ** 10  # holds the interpreter's lock
        if solution_str == "exit":
            os._exit(1)
        if solution_str == "sys.exit":
            sys.exit(3)
        if solution_str == "segfault":
            os.kill(os.getpid(), 11)
        if solution_str == "raise":
            raise KeyError("no such field")
        if solution_str == "hog":
            bytearray(64 * 2**30)
        if solution_str in ("child", "session"):
            child = subprocess.Popen(["sleep", "1000"], start_new_session=solution_str == "session")
            with open(ground_truth, "w") as file:
                file.write(str(child.pid))
            time.sleep(1000)
        if solution_str == "leave child":
            child = subprocess.Popen(["sleep", "1000"])
            return {"score": 1.0, "pid": child.pid}
        if solution_str == "fork":
            return float(os.fork() != 0)
        if solution_str == "orphan keeps pipe":
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(5)
        print("a reward may print")
        return {"score": float(solution_str), "pid": os.getpid()}
"""


def request(response: str, ground_truth: object = "") -> RewardRequest:
    return RewardRequest("anything", response, ground_truth)


@pytest.mark.parametrize("loop", ["loop", "native loop"])
def test_an_endless_reward_is_a_timeout(custom, loop):
    scorer = custom(POISON, timeout_s=0.5, memory_limit_gb=None)
    (result,) = scorer.score([request(loop)])
    assert (result.score, result.correct, result.failure) == (0.0, False, "timeout")
    assert (scorer.counters.total, scorer.counters.timeouts, scorer.counters.crashes) == (1, 1, 0)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("exit", "crash: worker process exited with code 1"),
        ("sys.exit", "crash: SystemExit: 3"),
        ("segfault", "crash: worker process killed by SIGSEGV"),
        ("raise", "crash: KeyError: 'no such field'"),
        ("hog", "crash: MemoryError"),
        ("orphan keeps pipe", "crash: worker process exited with code 5"),
        ("not a number", "crash: ValueError: could not convert string to float: 'not a number'"),
    ],
)
def test_a_crash_is_named_and_the_next_response_is_judged(custom, response, said):
    scorer = custom(POISON, num_workers=1)
    crashed, fine = scorer.score([request(response), request("1")])
    assert crashed.failure is not None
    assert crashed.failure.startswith(said)
    assert (crashed.score, crashed.correct) == (0.0, False)
    assert (fine.score, fine.failure) == (1.0, None)
    assert (scorer.counters.total, scorer.counters.timeouts, scorer.counters.crashes) == (2, 0, 1)


def test_an_exception_in_a_reward_says_where_it_was_raised(custom):
    (result,) = custom(POISON).score([request("raise")])
    assert result.failure is not None
    assert "reward_0.py:17)" in result.failure


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("Refused('the judge\\nis closed')", "crash: Refused: the judge is closed ("),
        ("ExceptionGroup('two', [ValueError('first'), KeyError(2)])", "crash: ValueError: first"),
    ],
)
def test_an_exception_is_told_in_one_line_by_what_the_user_wrote(custom, raised, told):
    source = f"""
        class Refused(Exception): pass

        def compute_score(data_source, solution_str, ground_truth, extra_info):
            raise {raised}
    """
    (result,) = custom(source).score([request("x")])
    assert result.failure is not None
    assert result.failure.startswith(told)


@pytest.mark.parametrize("kind", ["child", "session"])
def test_children_of_a_reward_that_overran_are_killed_with_it(custom, tmp_path, wait_until_gone, kind):
    pid_file = tmp_path / "pid"
    (result,) = custom(POISON, timeout_s=3.0).score([request(kind, str(pid_file))])
    assert result.failure == "timeout"
    assert wait_until_gone(int(pid_file.read_text()))


def test_children_that_a_reward_leaves_behind_end_with_the_scorer(custom, wait_until_gone):
    scorer = custom(POISON)
    (result,) = scorer.score([request("leave child")])
    child = int(result.extra["pid"])
    assert psutil.pid_exists(child)
    scorer.close()
    assert wait_until_gone(child)


def test_a_reward_that_forks_is_answered_once(custom):
    scorer = custom(POISON, num_workers=1)
    assert [result.score for result in scorer.score([request("fork"), request("2"), request("3")])] == [
        1,
        2,
        3,
    ]


def test_two_poisonous_responses_cost_nothing_to_the_other_62(custom):
    responses = [str(number) for number in range(64)]
    responses[7], responses[40] = "loop", "segfault"
    results = custom(POISON, timeout_s=2.0).score([request(response) for response in responses])
    failures = {index: result.failure for index, result in enumerate(results) if result.failure}
    assert failures == {7: "timeout", 40: "crash: worker process killed by SIGSEGV"}
    assert all(result.score == index for index, result in enumerate(results) if index not in failures)


def test_workers_are_kept_between_batches_and_work_in_parallel(custom):
    scorer = custom(POISON, num_workers=2)
    requests = [request("1") for _ in range(40)]
    first = {result.extra["pid"] for result in scorer.score(requests)}
    second = {result.extra["pid"] for result in scorer.score(requests)}
    assert len(first | second) <= 2
    assert os.getpid() not in first | second


def test_no_process_is_started_before_a_response_needs_one():
    children = set(psutil.Process().children())
    with RewardScorer(RewardConfig(num_workers=2)) as scorer:
        results = scorer.score([RewardRequest("math", rf"\boxed{{{n}}}", "3") for n in range(8)])
        assert set(psutil.Process().children()) == children
    assert [result.correct for result in results] == [n == 3 for n in range(8)]


def test_a_worker_that_was_killed_between_batches_is_replaced_without_blame(custom, wait_until_gone):
    scorer = custom(POISON, num_workers=1)
    pid = int(scorer.score([request("1")])[0].extra["pid"])
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid)
    (result,) = scorer.score([request("1")])
    assert result.failure is None
    assert scorer.counters.crashes == 0


def test_workers_outlive_the_thread_that_first_used_them(custom):
    scorer = custom(POISON, num_workers=1)
    pids: list[float] = []
    thread = threading.Thread(target=lambda: pids.append(scorer.score([request("1")])[0].extra["pid"]))
    thread.start()
    thread.join()
    assert scorer.score([request("1")])[0].extra["pid"] == pids[0]


def test_scoring_works_again_after_close(custom):
    scorer = custom(POISON, num_workers=1)
    assert scorer.score([request("1")])[0].score == 1.0
    scorer.close()
    assert scorer.score([request("2")])[0].score == 2.0


@pytest.fixture
def pythons_own_interrupts():
    """Python's own, also where the suite was started in the background, which ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_stops_the_workers_and_leaves_the_scorer_usable(
    pythons_own_interrupts, custom, wait_until_gone, tmp_path
):
    scorer = custom(POISON, num_workers=1)
    pid = int(scorer.score([request("1")])[0].extra["pid"])
    pid_file = tmp_path / "pid"

    def interrupt_when_busy() -> None:
        while not (pid_file.exists() and pid_file.read_text()):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_when_busy).start()
    with pytest.raises(KeyboardInterrupt):
        scorer.score([request("child", str(pid_file))])
    assert wait_until_gone(pid)
    assert scorer.score([request("3")])[0].score == 3.0


def test_the_worker_never_loads_torch(custom):
    scorer = custom("""
        import sys

        def compute_score(data_source, solution_str, ground_truth, extra_info):
            return float("torch" in sys.modules)
    """)
    assert scorer.score([request("")])[0].score == 0.0


def test_importing_rewards_and_their_settings_loads_neither_torch_nor_sympy_nor_the_sandbox():
    program = (
        "import sys, archer.rewards.config, archer.rewards; "
        "heavy = ('torch', 'numpy', 'sympy', 'archer.rewards.sandbox', 'archer.rewards.math'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("busy_with", ["loop", "native loop", "nothing"])
def test_no_worker_outlives_a_parent_that_is_killed(tmp_path, wait_until_gone, busy_with):
    reward = tmp_path / "reward.py"
    reward.write_text(
        textwrap.dedent("""
            import os, subprocess

            def compute_score(data_source, solution_str, ground_truth, extra_info):
                child = subprocess.Popen(["sleep", "1000"])
                print(os.getpid(), child.pid, flush=True)
                while solution_str == "loop":
                    pass
                if solution_str == "native loop":
                    10 ** 10 ** 10  # holds the interpreter's lock
                return 1
        """)
    )
    program = f"""
import time
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.config import CustomRewardConfig
function = CustomRewardConfig({str(reward)!r})
config = RewardConfig(
    num_workers=1, timeout_s=1000, memory_limit_gb=None, custom_reward_function=function
)
scorer = RewardScorer(config)
scorer.score([RewardRequest("x", {busy_with!r}, None)])
time.sleep(1000)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True
    )
    assert parent.stderr is not None
    worker, child = map(int, parent.stderr.readline().split())
    parent.kill()
    assert parent.wait() == -signal.SIGKILL
    assert wait_until_gone(worker)
    assert wait_until_gone(child)
    parent.stderr.close()
