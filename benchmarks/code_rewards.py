"""How many small programs are judged per second, beside plain subprocesses without a sandbox.

    python benchmarks/code_rewards.py --workers 2 --programs 200

Three ways of running the same programs on the same inputs, interleaved in rounds so that a busy machine
troubles all alike; each figure is the median of the rounds:

- `subprocess.run` of a fresh interpreter, no isolation: what a simple grader does
- the sandbox, one per worker
- the whole reward: `RewardScorer` on responses, from text to score, with stdin tests and with assertions
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.config import CodeConfig
from archer.rewards.rules.code import program_limits
from archer.rewards.sandbox import Sandbox

PROGRAM = "a, b = map(int, input().split())\nprint(sum(x * x for x in range(a)) + b)\n"
FUNCTION = "def solve(a, b):\n    return sum(x * x for x in range(a)) + b\n"


def answer(a: int, b: int) -> int:
    return sum(x * x for x in range(a)) + b


def plain(index: int) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM],
        input=f"{index % 100} {index}",
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    assert int(done.stdout) == answer(index % 100, index)


def sandboxed(sandbox: Sandbox, indices: range) -> None:
    for index in indices:
        outcome = sandbox.run_script(PROGRAM, f"{index % 100} {index}", 10.0)
        assert int(outcome.stdout) == answer(index % 100, index)


def rewarded(scorer: RewardScorer, requests: list[RewardRequest]) -> None:
    assert all(result.correct for result in scorer.score(requests))


def requests_of(kind: str, count: int) -> list[RewardRequest]:
    """Responses that all differ, so that none is judged for another."""
    requests = []
    for index in range(count):
        a, b = index % 100, index
        if kind == "stdin":
            program, tests = PROGRAM, {"inputs": [f"{a} {b}"], "outputs": [str(answer(a, b))]}
        else:
            program, tests = FUNCTION, {"functional": f"assert solve({a}, {b}) == {answer(a, b)}"}
        requests.append(RewardRequest("code", f"```python\n{program}# {index}\n```", tests))
    return requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--programs", type=int, default=200, help="programs per round and way")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    count, workers = options.programs, options.workers
    config = CodeConfig()
    sandboxes = [Sandbox(program_limits(config)) for _ in range(workers)]
    scorer = RewardScorer(RewardConfig(num_workers=workers, code=config))
    shares = [range(worker, count, workers) for worker in range(workers)]
    by_stdin, by_asserts = requests_of("stdin", count), requests_of("asserts", count)
    with ThreadPoolExecutor(workers) as threads:
        ways: dict[str, Callable[[], object]] = {
            "subprocess.run, no sandbox": lambda: list(threads.map(plain, range(count))),
            "sandbox": lambda: list(threads.map(sandboxed, sandboxes, shares)),
            "reward, stdin test": lambda: rewarded(scorer, by_stdin),
            "reward, assertion": lambda: rewarded(scorer, by_asserts),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way()  # starts workers and fills caches
        for _ in range(options.rounds):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                rates[name].append(count / (time.perf_counter() - start))
    print(f"{sandboxes[0].layers.describe()}; {workers} workers, {count} programs, {options.rounds} rounds")
    baseline = statistics.median(rates["subprocess.run, no sandbox"])
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"{name:30s} {median:7.1f} programs/s   {median / baseline:5.2f} x   (rounds {_list(values)})")
    scorer.close()
    for sandbox in sandboxes:
        sandbox.close()


def _list(values: list[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values)


if __name__ == "__main__":
    main()
