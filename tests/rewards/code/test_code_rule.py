"""Programs judged through the scorer that training uses."""

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from archer.errors import ArcherError
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.config import CodeConfig
from archer.rewards.rules import find_rule
from archer.rewards.rules.code import CodeRule, program_limits
from archer.rewards.sandbox import Sandbox

ROOT = Path(__file__).parents[3]
DOUBLE = {"inputs": [[1], [4]], "outputs": [2, 8], "fn_name": "double"}
SUM = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
RIGHT = "<think>```python\nno\n```</think>\n```python\ndef double(x):\n    return 2 * x\n```"
WRONG = "```python\ndef double(x):\n    return 2\n```"
SCRIPT = "```python\nprint(sum(map(int, input().split())))\n```"


@pytest.fixture(scope="module")
def scorer():
    with RewardScorer(
        RewardConfig(num_workers=2, code=CodeConfig(test_timeout_s=10.0, memory_mb=256))
    ) as shared:
        yield shared


@pytest.mark.parametrize(
    "source", ["livecodebench/code_generation_lite", "humaneval", "leetcode", "taco", "apps", "mbpp", "code"]
)
def test_common_code_sources_are_known(source):
    assert find_rule(source) is CodeRule


def test_programs_and_answers_are_judged_together_in_order(scorer):
    results = scorer.score(
        [
            RewardRequest("code", RIGHT, DOUBLE),
            RewardRequest("math", r"\boxed{\sqrt{16}}", "4"),
            RewardRequest("code", WRONG, json.dumps(DOUBLE)),
            RewardRequest("livecodebench", SCRIPT, json.dumps(SUM)),
            RewardRequest("arithmetic", r"\boxed{4}", "5"),
            RewardRequest("code", "I do not know.", DOUBLE),
            RewardRequest("code", f"<think>{SCRIPT}", SUM),
        ]
    )
    assert [result.correct for result in results] == [True, True, False, True, False, False, False]
    assert [result.score for result in results] == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert all(result.failure is None for result in results)
    assert results[2].detail == "expected 8, got 2"
    assert results[2].extra["code_failed_test"] == 1.0
    assert results[5].extra["code_no_program"] == results[6].extra["code_no_program"] == 1.0


def test_a_program_that_misbehaves_is_wrong_and_no_failure_of_the_judge(scorer):
    hostile = [
        "import os\nos._exit(0)",
        "x = bytearray(10**10)",
        "while True: print('x' * 9999)",
        "import os\nwhile True: os.fork()",
    ]
    requests = [RewardRequest("code", f"```python\n{program}\n```", SUM) for program in hostile]
    before = scorer.counters
    results = scorer.score([*requests, RewardRequest("code", SCRIPT, SUM)])
    assert [result.correct for result in results] == [False] * 4 + [True]
    assert scorer.counters.timeouts + scorer.counters.crashes == before.timeouts + before.crashes
    endings = [
        name for result in results for name, on in result.extra.items() if on == 1.0 and "tests" not in name
    ]
    assert endings == ["code_wrong", "code_memory", "code_output", "code_crash", "code_passed"]


def test_equal_programs_are_run_once():
    slow = "```python\nimport time; time.sleep(0.5)\n```"
    with RewardScorer(RewardConfig(num_workers=1, code=CodeConfig(test_timeout_s=0.2))) as scorer:
        results = scorer.score([RewardRequest("code", slow, SUM)] * 200)  # two hundred runs would show
    assert {result.extra["code_timeout"] for result in results} == {1.0}


def test_sampled_tests_and_partial_credit_are_settings():
    tests = {"inputs": [str(n) for n in range(40)], "outputs": [str(n % 2) for n in range(40)]}
    config = CodeConfig(max_tests=10, partial_credit=True)
    with RewardScorer(RewardConfig(num_workers=1, code=config)) as scorer:
        request = RewardRequest("code", "```python\nprint(0)\n```", tests)
        first, second = (scorer.score([request])[0] for _ in range(2))
    assert first == second
    assert first.extra["code_tests"] == 10.0
    assert first.score == first.extra["code_tests_passed"] / 10
    assert 0 < first.score < 1
    assert not first.correct


def test_a_data_set_is_checked_with_the_sandbox_before_training(caplog):
    with caplog.at_level(logging.INFO), RewardScorer(RewardConfig()) as scorer:
        for _ in range(3):
            scorer.check("code", DOUBLE)
        with pytest.raises(ArcherError, match="no tests"):
            scorer.check("code", {"answer": "42"})
    assert caplog.text.count("Sandbox for model-written code: layers:") == 1


def test_closing_leaves_no_process_behind():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    scorer = RewardScorer(RewardConfig(num_workers=2))
    scorer.score([RewardRequest("code", SCRIPT, SUM), RewardRequest("code", RIGHT, DOUBLE)])
    workers = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert len(workers) >= 4  # two workers with a sandbox each
    scorer.close()
    _, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in workers if psutil.pid_exists(pid)], timeout=20
    )
    assert not alive


@pytest.mark.parametrize(
    "setting",
    [{"test_timeout_s": 0.0}, {"total_timeout_s": float("inf")}, {"memory_mb": 1}, {"max_tests": 0}],
)
def test_impossible_settings_are_refused(setting):
    with pytest.raises(ArcherError, match=r"must be (finite and )?(at least|greater than)"):
        CodeConfig(**setting)


UNENDING = """
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.config import CodeConfig

program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: pass"
config = RewardConfig(num_workers=2, code=CodeConfig(test_timeout_s=600, total_timeout_s=600))
tests = {"inputs": [""], "outputs": ["x"]}
responses = [f"```python\\n{program}\\n# {number}\\n```" for number in range(2)]
RewardScorer(config).score([RewardRequest("code", response, tests) for response in responses])
"""


def test_nothing_survives_the_death_of_the_trainer():
    # two workers, each with a launcher, perhaps a zygote of its own, a supervisor and a program
    expected = 2 * (5 if has_namespaces() else 4)
    trainer = subprocess.Popen([sys.executable, "-c", UNENDING], cwd=ROOT)
    family: list[psutil.Process] = []
    while len(family) < expected and trainer.poll() is None:
        time.sleep(0.02)
        family = psutil.Process(trainer.pid).children(recursive=True)
    assert trainer.poll() is None
    trainer.kill()
    trainer.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


def has_namespaces() -> bool:
    with Sandbox(program_limits(CodeConfig())) as sandbox:
        return sandbox.layers.namespaces
