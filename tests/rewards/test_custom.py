"""Reward functions as users of verl and TRL write them: async, for a batch, several, without an opinion."""

import asyncio
import json
import textwrap
import threading
import time
from pathlib import Path

import pytest

from archer.errors import ArcherError
from archer.rewards import RewardConfig, RewardRequest, RewardScorer
from archer.rewards.config import CustomRewardConfig
from archer.rewards.rules import NO_OPINION

CHAT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"})


def requests(*responses: str, source: str = "x", **fields: object) -> list[RewardRequest]:
    return [RewardRequest(source, response, "truth", **fields) for response in responses]


def scores(results: list) -> list[float]:
    return [result.score for result in results]


class StubJudge:
    """An HTTP service that takes a second for every answer, and counts how many it holds at a time."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds, self.held, self.most_held, self.bodies = seconds, 0, 0, []
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self._serve, args=(started,), daemon=True).start()
        assert started.wait(30)

    def _serve(self, started: threading.Event) -> None:
        self.server = self.loop.run_until_complete(
            asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=200)
        )
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/judge"
        started.set()
        self.loop.run_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        self.held += 1
        self.most_held = max(self.held, self.most_held)
        await asyncio.sleep(self.seconds)
        self.held -= 1
        verdict = {"score": float(body["answer"]) / 100, "why": f"because of {body['answer']}"}
        status = "200 OK" if body["answer"] != "13" else "503 Overloaded"
        writer.write(f"HTTP/1.0 {status}\r\n\r\n{json.dumps(verdict)}".encode())
        await writer.drain()
        writer.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture
def service():
    stub = StubJudge()
    yield stub
    stub.close()


def http_judge(url: str, **settings: object) -> RewardScorer:
    path = Path(__file__).parents[2] / "examples" / "http_judge.py"
    function = CustomRewardConfig(str(path), "judge", **settings)
    return RewardScorer(
        RewardConfig(timeout_s=30, custom_reward_function=function, custom_kwargs={"url": url})
    )


def test_32_calls_of_a_second_to_an_http_judge_take_little_more_than_one(service):
    with http_judge(service.url) as scorer:
        scorer.score(requests("1"))  # starts the processes
        begun = time.monotonic()
        results = scorer.score(requests(*map(str, range(20, 52)), messages=CHAT))
        seconds = time.monotonic() - begun
    assert scores(results) == [number / 100 for number in range(20, 52)]
    assert [result.correct for result in results] == [number >= 50 for number in range(20, 52)]
    assert results[3].extra == {"why": "because of 23"}
    assert service.bodies[-1]["question"] == "2+2?"
    assert service.most_held >= 16
    print(f"32 calls of 1 s: {seconds:.2f} s, {service.most_held} at a time")
    assert seconds < 8  # one after the other would be 32, in two processes 16; alone on a machine it is 1.1


def test_no_more_calls_wait_at_a_time_than_allowed(service):
    service.seconds = 0.2
    with http_judge(service.url, max_concurrency=3) as scorer:
        assert not any(result.failure for result in scorer.score(requests(*map(str, range(20, 40)))))
    assert 2 <= service.most_held <= 3


def test_a_judge_that_refuses_one_response_fails_that_one_and_an_empty_one_has_no_opinion(service):
    service.seconds = 0
    with http_judge(service.url) as scorer:
        fine, refused, empty = scorer.score(requests("20", "13", " "))
    assert fine.failure is None
    assert "503 Overloaded" in refused.failure
    assert empty.failure == NO_OPINION


POISON = """
    import asyncio, os, sys, time

    async def compute_score(data_source, solution_str, ground_truth, extra_info):
        await asyncio.sleep(0.01)
        if solution_str == "wait":
            await asyncio.sleep(1000)
        if solution_str == "stubborn":
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass
        if solution_str == "block":
            time.sleep(1000)
        if solution_str == "native loop":
            10 ** 10 ** 10
        if solution_str == "exit":
            os._exit(1)
        if solution_str == "sys.exit":
            sys.exit(3)
        if solution_str == "own timeout":
            raise TimeoutError("the service is slow")
        if solution_str == "cancelled":
            raise asyncio.CancelledError
        if solution_str == "hog":
            bytearray(64 * 2**30)
        return float(solution_str)
"""


@pytest.mark.parametrize(
    ("poison", "said"),
    [
        ("wait", "timeout"),
        ("stubborn", "timeout"),
        ("block", "timeout"),
        ("native loop", "timeout"),
        ("exit", "crash: worker process exited with code 1"),
        ("sys.exit", "crash: SystemExit: 3"),
        ("own timeout", "crash: TimeoutError: the service is slow"),
        ("cancelled", "crash: asyncio.exceptions.CancelledError"),
        ("hog", "crash: MemoryError"),
    ],
)
def test_an_async_call_that_never_ends_or_crashes_costs_nothing_to_those_beside_it(custom, poison, said):
    scorer = custom(POISON, timeout_s=1.0)
    before, poisoned, after = scorer.score(requests("1", poison, "2"))
    assert poisoned.failure.startswith(said)
    assert (before.score, before.failure) == (1.0, None)
    assert (after.score, after.failure) == (2.0, None)
    assert scores(scorer.score(requests("3"))) == [3.0]


def test_responses_too_long_for_a_pipe_do_not_stop_the_clock_of_a_blocked_loop(custom):
    scorer = custom(POISON, timeout_s=1.0, num_workers=1)
    long = "0" * 2_000_000 + "7"
    results = scorer.score(requests("native loop", long, long))
    assert [result.failure for result in results] == ["timeout", None, None]
    assert scores(results) == [0.0, 7.0, 7.0]


def test_async_calls_that_block_are_slow_but_none_is_blamed_for_the_time_of_the_others(custom):
    scorer = custom(
        """
        import time

        async def compute_score(solution_str, **row):
            time.sleep(0.3)
            return float(solution_str)
        """,
        timeout_s=0.8,
        num_workers=1,
    )
    assert scores(scorer.score(requests(*"12345678"))) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_async_function_keeps_its_event_loop_between_batches(custom):
    scorer = custom(
        """
        import asyncio
        loops = set()

        async def compute_score(**row):
            loops.add(asyncio.get_running_loop())
            return len(loops)
        """,
        num_workers=1,
    )
    assert scores(scorer.score(requests("a", "b")) + scorer.score(requests("c"))) == [1, 1, 1]


def test_the_prompt_and_the_messages_are_given_to_those_who_take_them(custom):
    request = requests("four", prompt="<s>2+2?", messages=CHAT)
    named = custom("""
        def compute_score(data_source, solution_str, ground_truth, extra_info, prompt, messages):
            return {"score": 1, "prompt": prompt, "asked": messages[-1]["content"]}
    """)
    assert named.score(request)[0].extra == {"prompt": "<s>2+2?", "asked": "2+2?"}
    anything = custom("def compute_score(**row): return {'score': 1, 'had': ' '.join(sorted(row))}")
    names = "data_source extra_info ground_truth messages prompt solution_str"
    assert anything.score(request)[0].extra == {"had": names}
    own = custom(
        "def compute_score(**row): return {'score': 1, 'prompt': row['prompt']}",
        custom_kwargs={"prompt": "mine"},
    )
    assert own.score(request)[0].extra == {"prompt": "mine"}


@pytest.mark.parametrize("kind", ["", "async "])
def test_a_batch_function_is_called_once_with_lists_as_in_trl(custom, kind):
    scorer = custom(
        f"""
        calls = 0

        {kind}def compute_score(prompts, completions, ground_truth, level, **columns):
            global calls
            calls += 1
            assert calls == 1 and prompts[1][-1]["content"] == "2+2?" and ground_truth == ["truth"] * 3
            assert columns["extra_info"][0] == {{"level": 3}}
            return [None, *(len(c[0]["content"]) * n for c, n in zip(completions[1:], level[1:]))]
        """,
        function={"batched": True},
    )
    results = scorer.score(requests("a", "bb", "ccc", messages=CHAT, extra_info={"level": 3}))
    assert [(result.score, result.failure) for result in results] == [(0, NO_OPINION), (6, None), (9, None)]


def test_without_chat_messages_completions_are_texts_as_in_trl(custom):
    source = (
        "def compute_score(completions, prompts): return [len(c + p) for c, p in zip(completions, prompts)]"
    )
    assert scores(custom(source, function={"batched": True}).score(requests("ab", "c", prompt="?"))) == [3, 2]


def test_a_batch_function_may_be_one_of_verls(custom):
    scorer = custom(
        """
        def compute_score(data_sources, solution_strs, ground_truths, extra_infos, factor):
            assert data_sources == ["x", "y"] and ground_truths == ["truth"] * 2 and extra_infos == [{}, {}]
            return [{"score": factor * len(text), "acc": False, "why": text} for text in solution_strs]
        """,
        function={"batched": True},
        custom_kwargs={"factor": 2},
    )
    first, second = scorer.score(requests("a") + requests("bb", source="y"))
    assert (first.score, first.correct, first.extra) == (2.0, False, {"why": "a"})
    assert second.score == 4.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [1]", "returned 1 scores for 3 responses"),
        ("return 1.0", "returned a float, expected a list of 3"),
        ("return {'score': [1, 2, 3]}", "returned a dict, expected a list of 3"),
        ("return None", "returned a NoneType, expected a list of 3"),
        ("raise KeyError('no such field')", "KeyError: 'no such field'"),
        ("while True: pass", "timeout"),
    ],
)
def test_a_batch_function_that_fails_fails_for_every_response_and_says_why(custom, body, said):
    scorer = custom(
        f"def compute_score(completions, **columns):\n    {body}", timeout_s=0.3, function={"batched": True}
    )
    results = scorer.score(requests("a", "b", "c"))
    assert all(said in result.failure for result in results)
    assert len(results) == 3


def test_one_score_of_a_batch_that_is_none_costs_that_response_alone(custom):
    source = "def compute_score(completions, **columns): return [1.0, float('nan'), 2.0]"
    results = custom(source, function={"batched": True}).score(requests("a", "b", "c"))
    assert [result.failure is None for result in results] == [True, False, True]
    assert "expected a finite number" in results[1].failure


def test_a_batch_has_the_time_of_all_its_responses(custom):
    source = (
        "import time\ndef compute_score(completions):\n    time.sleep(1.5)\n    return [1] * len(completions)"
    )
    results = custom(source, timeout_s=0.6, function={"batched": True}).score(requests(*"abcdefgh"))
    assert scores(results) == [1.0] * 8


@pytest.mark.parametrize(
    "source",
    [
        "def compute_score(data_source, solution_str, ground_truth, extra_info): return 1",
        "def compute_score(): return 1",
    ],
)
def test_a_function_for_one_response_is_refused_for_a_batch(custom, source):
    with pytest.raises(ArcherError, match=r"called with lists: take completions .*or solution_strs"):
        custom(source, function={"batched": True})


def test_a_column_that_the_data_does_not_have_is_named(custom):
    scorer = custom("def compute_score(completions, colour): return [1]", function={"batched": True})
    (result,) = scorer.score(requests("a", extra_info={"level": 1}))
    assert "missing a required argument: 'colour'; the data has the columns level," in result.failure


@pytest.mark.parametrize("returned", ["None", "{'score': None, 'why': 'not my subject'}"])
def test_none_is_no_opinion_and_with_no_other_function_the_response_is_unjudged(custom, returned):
    (result,) = custom(f"def compute_score(**row): return {returned}").score(requests("a"))
    assert (result.score, result.correct) == (0.0, False)
    assert result.failure == "no reward function had an opinion"
    assert result.extra == ({"why": "not my subject"} if "why" in returned else {})


@pytest.fixture
def several(tmp_path):
    """Return a maker of scorers of several functions: name -> source or (source, settings)."""
    made = []

    def make(timeout_s: float = 30.0, **functions: object) -> RewardScorer:
        entries = []
        for name, given in functions.items():
            source, settings = given if isinstance(given, tuple) else (given, {})
            path = tmp_path / f"{name}.py"
            path.write_text(textwrap.dedent(source))
            entries.append({"path": str(path), "name": name, **settings})
        made.append(RewardScorer(RewardConfig(timeout_s=timeout_s, custom_reward_functions=tuple(entries))))
        return made[-1]

    yield make
    for scorer in made:
        scorer.close()


LENGTH = "def length(solution_str, **row): return {'score': len(solution_str), 'why': 'counted'}"


def test_several_functions_add_up_by_weight_and_each_is_kept(several):
    scorer = several(
        length=(LENGTH, {"weight": 0.1}),
        fussy=("async def fussy(solution_str, **row): return None if 'b' in solution_str else -1", {}),
        exact=(
            "def exact(completions, scale): return [{'score': scale, 'acc': c == 'b'} for c in completions]",
            {"batched": True, "weight": 2, "reward_kwargs": {"scale": 3}},
        ),
    )
    first, second = scorer.score(requests("aaaa", "b"))
    assert first.score == pytest.approx(0.1 * 4 - 1 + 2 * 3)
    assert second.score == pytest.approx(0.1 * 1 + 2 * 3)
    assert [first.correct, second.correct] == [False, True]
    assert first.extra == {"length": 4.0, "length/why": "counted", "fussy": -1.0, "exact": 3.0}
    assert second.extra == {"length": 1.0, "length/why": "counted", "exact": 3.0}


def test_where_no_function_says_what_is_right_a_score_over_zero_is(several):
    minus = "def minus(**row): return 2"
    scorer = several(length=LENGTH, minus=(minus, {"weight": -1}))
    assert [result.correct for result in scorer.score(requests("a", "aaa"))] == [False, True]


def test_a_response_that_one_of_several_functions_cannot_judge_is_unjudged(several):
    scorer = several(length=LENGTH, broken="def broken(**row): raise KeyError('no such field')")
    (result,) = scorer.score(requests("a"))
    assert result.failure.startswith("crash: KeyError")
    assert result.score == 0.0
    assert result.extra["length"] == 1.0
    assert scorer.counters.crashes == 1


def test_a_custom_function_for_one_data_source_stands_beside_the_built_in_rules(custom):
    scorer = custom(
        "def compute_score(solution_str, **row): return len(solution_str)",
        function={"data_source": ("my/poems", "haiku*")},
    )
    mixed = [
        *requests("frog", source="my/poems"),
        RewardRequest("math", r"\boxed{\sqrt{16}}", "4"),
        *requests("pond!", source="haiku/basho"),
        RewardRequest("openai/gsm8k", r"\boxed{7}", "8"),
    ]
    assert scores(scorer.score(mixed)) == [4.0, 1.0, 5.0, 0.0]
    scorer.check("my/poems", None)
    with pytest.raises(ArcherError, match="ground truth None"):
        scorer.check("math", None)
    with pytest.raises(ArcherError, match="my/prose"):
        scorer.check("my/prose", None)


def test_functions_of_the_single_form_and_of_the_list_judge_together(custom, tmp_path):
    path = tmp_path / "style.py"
    path.write_text("def compute_score(**row): return 10")
    scorer = custom(
        "def compute_score(solution_str, **row): return 1", custom_reward_functions=({"path": str(path)},)
    )
    (result,) = scorer.score(requests("a"))
    assert result.score == 11.0
    assert result.extra == {"reward_0_compute_score": 1.0, "style_compute_score": 10.0}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "f"}, r"custom_reward_functions\[0\].*expected \{path"),
        ("f.py", r"expected \{path"),
        ({"path": "f.py", "wieght": 1}, r"\[0\]\.wieght: no such setting.*Did you mean weight"),
        ({"path": "f.py", "weight": "much"}, r"\[0\]\.weight='much': expected a number"),
        ({"path": "f.py", "weight": float("nan")}, r"\[0\]\.weight=nan: must be"),
        ({"path": "f.py", "batched": 1}, r"\[0\]\.batched=1: expected True or False"),
        ({"path": "f.py", "max_concurrency": 0}, r"\[0\]\.max_concurrency=0: must be at least 1"),
        ({"path": "f.py", "data_source": "*s"}, r"\[0\]\.data_source=\*s: must be a full name, or a prefix"),
        ({"path": 3}, r"\[0\]\.path=3: expected text"),
    ],
)
def test_an_entry_of_the_list_that_is_no_function_is_refused(entry, message):
    with pytest.raises(ArcherError, match=message):
        RewardConfig(custom_reward_functions=(entry,))


def test_a_file_of_the_list_that_is_missing_is_named():
    with pytest.raises(ArcherError, match=r"reward\.custom_reward_functions=.*nowhere\.py: there is no such"):
        RewardScorer(RewardConfig(custom_reward_functions=({"path": "nowhere.py"},)))


@pytest.mark.parametrize(
    "returned", ["{1, 2, 3}", "b'abc'", "'abc'", "{'a': 1}", "range(3)", "iter([1, 2, 3])", "7"]
)
def test_a_batch_is_answered_by_a_list_and_by_nothing_without_an_order(custom, returned):
    scorer = custom(
        f"def compute_score(completions, **columns): return {returned}", function={"batched": True}
    )
    for result in scorer.score(requests("a", "b", "c")):
        assert "expected a list of 3 scores" in result.failure


@pytest.mark.parametrize("score", ["1e308", "-1e16", "1e300 * 10", "{'score': 2e15}"])
def test_a_score_that_float32_could_not_square_is_no_score(custom, score):
    (result,) = custom(f"def compute_score(**row): return {score}").score(requests("a"))
    assert "expected a finite number within" in result.failure
