"""`archer verify --model` on the embedded model, and `--from-trace` on the real trace that ships."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import archer
from archer.errors import ArcherError
from archer.generation.batch import micro_batch
from archer.generation.policy import Policy
from archer.influence import Group, InfluenceConfig, InfluenceTracer
from archer.verify import capture, model_checks
from archer.verify.command import verify
from archer.verify.gather import GatherOptions, build, gather
from archer.verify.model_checks import CheckedGroup, check_factors, check_slopes, check_solvers
from archer.verify.shared_prompt import SharedPrompt, activations_only
from archer.verify.token_methods import TokenMethods, candidates, layout_of, loss_weights
from archer.verify.traced_cases import cases_of_trace

torch.set_num_threads(1)
app = typer.Typer()
app.command()(verify)
PACKAGE = Path(archer.__file__).parent
TINY = str(PACKAGE / "assets" / "tiny_reasoner")
DATA = "builtin:arithmetic/val?size=256"
SMALL = [
    *("--max-tokens", "48", "--projection-dim-factor", "4", "--batch", "8"),
    *("--threads", "1", "--permutations", "1", "--quick"),
]

OPTIONS = GatherOptions(
    model=TINY,
    data=(DATA,),
    cases=4,
    max_prompts=16,
    responses=6,
    max_tokens=48,
    temperature=1.0,
    batch=8,
    seed=0,
    device="cpu",
    dtype="float32",
    threads=1,
    factor=4,
    budget=4096,
    permutations=2,
    last_number=False,
)


def run(*options: str):
    return CliRunner().invoke(app, list(options))


@pytest.fixture(scope="module")
def gathered():
    generation = build(OPTIONS)
    return generation, gather(generation, OPTIONS, lambda line: None, kept=1)


@pytest.fixture(scope="module")
def subject(gathered) -> CheckedGroup:
    generation, found = gathered
    return CheckedGroup.of(generation.model, generation.compute.device, *found.groups[0])


def test_the_whole_command_on_the_embedded_model(tmp_path):
    file = tmp_path / "verify.json"
    outcome = run(
        "--model", TINY, "--data", DATA, "--cases", "12", "--max-prompts", "24", *SMALL, "--json", str(file)
    )
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(file.read_text())
    assert document["passed"] is True and document["cases"] >= 12
    assert document["responses_sampled"] == 8 * document["prompts_used"]
    exact = [check for check in document["checks"] if check["passed"] is not None]
    assert [check["passed"] for check in exact] == [True] * 6
    tables = [check for check in document["checks"] if check["name"].startswith("first false equation")]
    assert len(tables) == 5
    for table in tables:
        rows = {figure["what"]: figure for figure in table["figures"]}
        assert set(candidates()) < set(rows) and "-NTHR's score" in rows and "gradient norm" in rows
    every = {figure["what"]: figure for figure in tables[0]["figures"]}
    assert every["-log-prob"]["AUC"] > 0.9 > every["random"]["AUC"]
    assert every["entropy"]["null AUC"] == every["entropy"]["AUC"]


def test_a_case_is_answered_where_an_accepted_response_writes_the_true_result(gathered):
    """Of the shipped trace's, 16 of 47: counted once more by a regular expression over its texts."""
    traced = cases_of_trace(PACKAGE / "viewer" / "demo_real", 0).cases
    assert [one.answered for one in traced].count(True) == 16
    assert [one.answered for one in traced].count(False) == 31
    assert any(one.answered for one in gathered[1].cases)


def test_too_few_cases_are_said(tmp_path):
    outcome = run("--model", TINY, "--data", DATA, "--cases", "9999", "--max-prompts", "2", *SMALL)
    assert "of 9999 cases: --max-prompts=2 were used up" in " ".join(outcome.output.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", TINY), "--data FILE"),
        (("--model", TINY, "--data", DATA, "--credit"), "exclude each other"),
        (("--model", TINY, "--from-trace", "x"), "exclude each other"),
        (("--cases", "3"), "--cases is of --model"),
        (("--threshold", "0.1"), "--threshold is of --model or --from-trace"),
        (("--from-trace", "x", "--last-number"), "--last-number is of --model"),
        (("--model", TINY, "--data", DATA, "--prompts", "3"), "--max-prompts"),
        (("--from-trace", "nowhere"), "nowhere is not a folder"),
        (("--model", "/nowhere", "--data", DATA), "no such folder"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_what_to_do(options, words):
    outcome = run(*options)
    assert isinstance(outcome.exception, ArcherError)
    assert words in str(outcome.exception)


def test_the_shipped_trace_gives_its_cases_and_their_places(tmp_path):
    file = tmp_path / "trace.json"
    outcome = run("--from-trace", str(PACKAGE / "viewer" / "demo_real"), "--json", str(file))
    assert outcome.exit_code == 0, outcome.output
    assert "Exact checks" not in outcome.output
    document = json.loads(file.read_text())
    assert document["passed"] is None and document["steps"] == 4
    assert 0 < document["cases"] <= document["false"] <= document["rejected"] < document["responses"]
    rows = {figure["what"]: figure for figure in document["checks"][0]["figures"]}
    assert list(rows) == ["-influence", "|influence|", "entropy", "-log-prob", "random"]
    assert all(row["AUC from"] <= row["AUC"] <= row["AUC to"] for row in rows.values())
    assert rows["-log-prob"]["AUC"] > rows["random"]["AUC"]


def test_one_backward_gives_the_scores_of_each_objectives_own(gathered):
    """The factors of sum log pi serve the training loss by a factor a response."""
    generation, found = gathered
    responses, accepted = found.groups[0]
    methods = TokenMethods(Policy(generation.model, generation.compute, 1.0), 4, 0, 0, 4096)
    valued = methods.of(responses, accepted)
    subject = CheckedGroup.of(generation.model, generation.compute.device, responses, accepted)
    weights = loss_weights(responses, accepted)
    config = InfluenceConfig(enable=True, projection_dim_factor=4)
    captured = capture.capture_objective(
        subject.model,
        capture.layout_of(subject.batch),
        config,
        lambda: (
            Policy(subject.model, generation.compute, 1.0).token_stats(subject.batch).log_probs
            * weights[:, None]
        ).sum(),
    )
    group = Group("prompt", tuple(range(len(responses))), accepted)
    expected = captured.scores((group,))
    for row in group.rows:
        found_scores = valued.values[row]["-influence, bare defaults"].double()
        scale = expected[row].abs().max()
        assert (found_scores + expected[row]).abs().max() < 1e-3 * scale


def test_behind_a_prompt_read_once_factors_and_log_probs_are_those_of_the_whole(gathered):
    """And no weight gets a gradient on the way."""
    generation, found = gathered
    responses, _ = found.groups[0]
    policy = Policy(generation.model, generation.compute, 1.0)
    tokens = responses.prompts[0].token_ids
    assert SharedPrompt.fits(policy, tokens)
    rows = [2, 0, 3]
    whole = micro_batch(responses, rows, generation.compute.device)
    behind = SharedPrompt(policy, tokens).batch(responses, rows)
    assert behind.input_ids.shape[1] == whole.input_ids.shape[1] - len(tokens) + 1
    tracer = InfluenceTracer(generation.model, InfluenceConfig(enable=True, projection="none"))
    kept = []
    for batch in (whole, behind):
        with activations_only(generation.model), tracer.capture(layout_of(batch)):
            stats = policy.token_stats(batch)
            stats.log_probs.sum().backward()
        kept.append((stats.log_probs, stats.entropy, tracer.captured[0]))
        tracer.reset()
    assert all(weight.requires_grad and weight.grad is None for weight in generation.model.parameters())
    (log_probs, entropy, expected), (*found_stats, factors) = kept
    torch.testing.assert_close(found_stats, [log_probs, entropy], atol=2e-5, rtol=1e-4)
    for module in tracer.modules:
        for row in rows:
            here, there = expected.positions[row], factors.positions[row]
            for a, b in ((expected.u, factors.u), (expected.v, factors.v)):
                wanted = a[module.name][here]
                torch.testing.assert_close(
                    b[module.name][there], wanted, atol=1e-4 * float(wanted.abs().max()), rtol=1e-3
                )


def test_gradients_of_weights_flow_through_the_shared_prompt(subject):
    weights = list(subject.model.parameters())
    signs = subject.signs[:, None]
    found, expected = (
        torch.autograd.grad((log_probs * signs).sum(), weights)
        for log_probs in (subject.shared_log_probs(), subject.log_probs())
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4 * float(other.abs().max()), rtol=1e-3)


def test_a_lost_position_breaks_the_factors_check(subject, monkeypatch):
    assert check_factors(subject.pair(), torch.float32).passed
    real = CheckedGroup.capture_means

    def without_one(self, config, dtype, every):
        factors = real(self, config, dtype, every)
        name, u = max(factors.u.items(), key=lambda item: float(item[1].float().norm()))
        kept = u.clone()
        kept[int(u.float().norm(dim=1).argmax())] = 0
        return replace(factors, u={**factors.u, name: kept})

    monkeypatch.setattr(CheckedGroup, "capture_means", without_one)
    assert not check_factors(subject.pair(), torch.float32).passed
    assert not check_factors(subject.pair(), torch.bfloat16).passed


def test_wrong_damping_breaks_the_solver_check(subject, monkeypatch):
    from archer.influence import solve

    assert check_solvers(subject, torch.float32).passed
    real = solve.primal_inverse
    monkeypatch.setattr(
        "archer.influence.scoring.primal_inverse", lambda H, *args: real(H * 1.01, *args), raising=True
    )
    assert not check_solvers(subject, torch.float32).passed


def test_scores_off_by_a_hundredth_break_the_slopes(subject, monkeypatch):
    assert check_slopes(subject.pair(), 3).passed
    real = model_checks._slope
    monkeypatch.setattr(model_checks, "_slope", lambda *args: 1.02 * real(*args))
    assert not check_slopes(subject.pair(), 3).passed
