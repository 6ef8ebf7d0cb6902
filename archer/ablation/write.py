"""Writing a report: CSV for programs, Markdown for diaries, HTML for eyes."""

import csv
import io
from pathlib import Path

from archer.ablation.agreement import Agreement
from archer.ablation.html import page
from archer.ablation.markdown import document
from archer.ablation.report import CaseReport, Report
from archer.ablation.statistics import QUANTILES
from archer.files import write_atomically

Cell = str | int | float | None


def write_report(report: Report, out: Path) -> list[Path]:
    """Write all files of a report into a folder and return them."""
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "cases.csv": _csv([case_row(case) for case in report.cases]),
        "correlations.csv": _csv([_agreement_row(a) for a in report.agreements]),
        "report.md": document(report),
        "report.html": page(report),
    }
    for name, text in files.items():
        write_atomically(out / name, text)
    return [out / name for name in files]


def case_row(case: CaseReport) -> dict[str, Cell]:
    """One case as a line of `cases.csv`; figures that it does not have are left out."""
    row: dict[str, Cell] = {
        "case": case.name,
        "status": case.state.status,
        "overrides": " ".join(case.own),
        "offloaded_after_out_of_memory": int(case.state.offloaded),
    }
    if case.state.attempts:
        last = case.state.attempts[-1]
        row |= {"starts": last.starts, "wall_s": last.seconds, "jobs": last.jobs, "load_average": last.load}
    if case.cost is not None:
        row |= {
            "steps": case.cost.steps,
            "measured_steps": case.cost.measured_steps,
            "step_s_median": case.cost.step_s,
            "step_s_fastest": case.cost.fastest_step_s,
            "update_s_median": case.cost.update_s,
            "update_s_fastest": case.cost.fastest_update_s,
            "influence_share_of_update": case.cost.influence_share,
            "cpu_s": case.cost.cpu_s,
            "peak_memory_gib": case.cost.memory_gb,
            "rows_emitted": case.cost.rows_emitted,
        }
    if case.ratio is not None:
        row |= {
            "step_ratio_median": case.ratio.step,
            "step_ratio_fastest": case.ratio.fastest_step,
            "update_ratio_median": case.ratio.update,
            "update_ratio_fastest": case.ratio.fastest_update,
            "cpu_ratio": case.ratio.cpu,
            "peak_memory_ratio": case.ratio.memory,
            "same_training_as_baseline": int(case.differs_at is None),
        }
    if case.scores is not None:
        row |= {"tokens_scored": case.scores.tokens, "score_mean": case.scores.mean}
        row |= {"score_std": case.scores.std}
        for quantile, value in zip(QUANTILES, case.scores.quantiles, strict=True):
            row[f"score_q{quantile * 100:02.0f}"] = value
        row["score_share_positive"] = case.scores.share_positive
    return row


def _agreement_row(a: Agreement) -> dict[str, Cell]:
    low, high = a.per_step_range or (None, None)
    return {
        "case": a.one,
        "other": a.other,
        "spearman_per_step": a.per_step,
        "spearman_per_step_min": low,
        "spearman_per_step_max": high,
        "spearman_per_prompt": a.per_prompt,
        "steps": a.steps,
        "tokens": a.tokens,
        "prompts": a.prompts,
        "steps_with_different_rollouts": a.different_steps,
    }


def _csv(rows: list[dict[str, Cell]]) -> str:
    text = io.StringIO()
    if rows:
        columns = list({name: None for row in rows for name in row})
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
