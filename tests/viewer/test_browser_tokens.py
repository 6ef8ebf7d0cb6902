"""Filtering, searching, sorting, extremes, distinct tokens and what is exported, against plain loops."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import go, shown
from playwright.sync_api import Page, expect
from small_traces import TEXT, VOCAB

from archer.trace.reader import TraceReader

WORDS = [VOCAB.token(index).decode("utf-8", "replace") for index in TEXT]


@pytest.fixture
def tokens(run_folder: Path) -> list[dict[str, Any]]:
    """Every valid token of step 2 as one record, made by loops."""
    arrays = TraceReader(run_folder / "influence_trace").read(2).arrays
    assert arrays.influence is not None and arrays.group_id is not None
    return [
        {
            "response": row,
            "group": int(arrays.group_id[row]),
            "position": position,
            "id": TEXT[position],
            "entropy": float(arrays.entropies[row, position]),
            "influence": float(arrays.influence[row, position]),
        }
        for row in range(8)
        for position in range(len(TEXT))
        if arrays.response_mask[row, position]
    ]


def exported(page: Page) -> list[dict[str, str]]:
    page.locator("#csv").wait_for()
    with page.expect_download() as download:
        page.locator("#csv").click()
    return list(csv.DictReader(io.StringIO(download.value.path().read_text())))


def places(rows: list[dict[str, str]]) -> list[tuple[int, int]]:
    return [(int(row["response"]), int(row["position"])) for row in rows]


def ready(page: Page, text: str) -> None:
    expect(page.locator(".tokenpanel .panelbody")).to_contain_text(text)


@pytest.mark.parametrize("scope", ["response", "group", "step"])
def test_the_highest_and_lowest_tokens_of_every_scope(
    page: Page, small: str, tokens: list[dict[str, Any]], scope: str
) -> None:
    go(page, small, f"#2/0/1?scope={scope}&k=10")
    shown(page, "0/2/0/1")
    ready(page, "lowest influence")
    inside = {
        "response": [token for token in tokens if token["response"] == 1],
        "group": [token for token in tokens if token["group"] == 0],
        "step": tokens,
    }[scope]
    valued = [token for token in inside if math.isfinite(token["influence"])]
    rows = exported(page)
    for name, sign in (("highest", -1), ("lowest", 1)):
        ranked = sorted(valued, key=lambda token: sign * token["influence"])[:10]
        found = [row for row in rows if row["list"] == name]
        assert places(found) == [(token["response"], token["position"]) for token in ranked]
        assert [float(row["influence"]) for row in found] == pytest.approx([t["influence"] for t in ranked])
        shown_cells = page.locator(f".halves .{name} tbody tr").all()
        assert len(shown_cells) == len(found)


@pytest.mark.parametrize("order", ["position", "ascending", "descending"])
def test_tokens_are_sorted_by_any_metric(
    page: Page, small: str, tokens: list[dict[str, Any]], order: str
) -> None:
    go(page, small, f"#2/0/0?table=list&metric=entropy&order={order}&k=50")
    shown(page, "0/2/0/0")
    ready(page, "of 14 tokens")
    own = [token for token in tokens if token["response"] == 0]
    if order != "position":
        own.sort(key=lambda token: token["entropy"] * (1 if order == "ascending" else -1))
    assert places(exported(page)) == [(0, token["position"]) for token in own]


def test_missing_values_come_last_in_either_order(page: Page, small: str) -> None:
    for order in ("ascending", "descending"):
        go(page, small, f"#2/0/0?table=list&metric=influence&order={order}&k=50")
        shown(page, "0/2/0/0")
        ready(page, "of 14 tokens")
        assert places(exported(page))[-1] == (0, 3)


def test_the_range_filter_keeps_exactly_the_values_inside(
    page: Page, small: str, tokens: list[dict[str, Any]]
) -> None:
    go(page, small, "#2/0/0?table=list&k=50&scope=group")
    shown(page, "0/2/0/0")
    page.get_by_label("Metric of the range").select_option("influence")
    page.locator("#lo").fill("-2")
    page.locator("#hi").fill("0.5")
    kept = [t for t in tokens if t["group"] == 0 and -2 <= t["influence"] <= 0.5]
    ready(page, f"of {len(kept)} tokens")
    assert places(exported(page)) == [(t["response"], t["position"]) for t in kept]
    page.get_by_role("button", name="Clear").click()
    ready(page, f"of {sum(t['group'] == 0 for t in tokens)} tokens")


def test_tokens_outside_the_range_fade_in_the_text(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    sample = """token => {
      const span = document.querySelector(`.workview [data-pane="1"] [data-token="${token}"]`);
      const pane = span.closest('.textpane');
      const [outer, box] = [pane.getBoundingClientRect(), span.getBoundingClientRect()];
      const canvas = pane.querySelector('canvas');
      const ratio = canvas.width / canvas.clientWidth;
      const [x, y] = [(box.x - outer.x + 2) * ratio, (box.y - outer.y + 5) * ratio];
      return canvas.getContext('2d').getImageData(x, y, 1, 1).data[3]; }"""
    page.locator('.workview .textpane[data-pane="1"] [data-token="14"]').wait_for()
    assert page.evaluate(sample, 0) == page.evaluate(sample, 14) == 255
    page.locator("#lo").fill("5")
    page.wait_for_function("() => location.hash.includes('lo=5')")
    assert page.evaluate(sample, 14) == 255
    assert page.evaluate(sample, 0) < 80


@pytest.mark.parametrize(
    ("query", "settings", "matches", "positions"),
    [
        ("answer", "", 2, [1, 13]),
        ("ANSWER", "", 2, [1, 13]),
        ("ANSWER", "&case=1", 0, []),
        ("is 42", "", 1, [2, 3, 4]),
        ("42\n so", "", 1, [4, 6, 7]),
        ("so∑ m", "", 1, [7, 8, 9, 10]),
        (".", "", 1, [11]),
        (r"\d+", "&regex=1", 1, [4]),
        (r"an\w+r|so", "&regex=1", 3, [1, 7, 13]),
        ("^The", "&regex=1", 1, [0]),
        ("∑", "", 1, [8, 9]),
    ],
)
def test_search_runs_over_the_joined_text_and_maps_back_to_tokens(
    page: Page, small: str, query: str, settings: str, matches: int, positions: list[int]
) -> None:
    """Position 5 is masked: it is marked in the text but is no row of the table."""
    from urllib.parse import quote

    go(page, small, f"#2/0/0?table=list&k=50&q={quote(query)}{settings}")
    shown(page, "0/2/0/0")
    said = {0: "no match", 1: "1 match"}.get(matches, f"{matches} matches")
    expect(page.locator(".matches")).to_have_text(said)
    ready(page, f"of {len(positions)} tokens")
    assert [place for _, place in places(exported(page))] == positions


def test_enter_goes_from_match_to_match_and_around(page: Page, small: str) -> None:
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    page.locator("#search").fill("answer")
    for place, token in (("1 of", 1), ("2 of", 13), ("1 of", 1)):
        page.locator("#search").press("Enter")
        expect(page.locator(".matches")).to_contain_text(place)
        page.wait_for_function(f"() => location.hash.startsWith('#2/0/0/{token}?')")


def test_a_wrong_regular_expression_is_explained_and_filters_nothing(page: Page, small: str) -> None:
    go(page, small, "#2/0/0?table=list&k=50&q=(&regex=1")
    shown(page, "0/2/0/0")
    expect(page.locator(".matches")).to_contain_text("group")
    expect(page.locator("#search")).to_have_attribute("aria-invalid", "true")
    ready(page, "of 14 tokens")


def test_distinct_tokens_are_aggregated(page: Page, small: str, tokens: list[dict[str, Any]]) -> None:
    go(page, small, "#2/0?table=distinct&k=50&metric=influence")
    shown(page, "0/2/0/null")
    ready(page, "distinct tokens among")
    by_id: dict[int, list[float]] = {}
    for token in tokens:
        if token["group"] == 0 and math.isfinite(token["influence"]):
            by_id.setdefault(token["id"], []).append(token["influence"])
    rows = exported(page)
    assert {int(row["token_id"]) for row in rows} == set(by_id)
    for row in rows:
        values = by_id[int(row["token_id"])]
        assert int(row["count"]) == len(values)
        assert float(row["mean"]) == pytest.approx(float(np.mean(values)), rel=1e-5, abs=1e-9)
        assert float(row["mean_abs"]) == pytest.approx(float(np.mean(np.abs(values))), rel=1e-5)
        assert (float(row["min"]), float(row["max"])) == pytest.approx((min(values), max(values)))
    sizes = [float(row["mean_abs"]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)


def test_statistics_of_a_response_are_those_of_numpy(
    page: Page, small: str, tokens: list[dict[str, Any]]
) -> None:
    go(page, small, "#2/0/2?table=statistics")
    shown(page, "0/2/0/2")
    ready(page, "influence")
    values = np.array([token["influence"] for token in tokens if token["response"] == 2])
    row = next(row for row in exported(page) if row["metric"] == "influence")
    expected = {
        "mean": values.mean(),
        "std": values.std(),
        "mean_abs": np.abs(values).mean(),
        "p01": np.percentile(values, 1),
        "median": np.median(values),
        "p99": np.percentile(values, 99),
        "positive_share": (values > 0).mean(),
    }
    for name, value in expected.items():
        assert float(row[name]) == pytest.approx(float(value), rel=1e-5), name


def test_csv_keeps_tokens_exactly_and_safe_for_spreadsheets(page: Page, small: str) -> None:
    go(page, small, "#2/0/0?table=list&k=50")
    shown(page, "0/2/0/0")
    ready(page, "of 14 tokens")
    rows = exported(page)
    words = {int(row["position"]): row["token"] for row in rows}
    assert words[6] == "\n" and words[1] == " answer" and words[8] == "∑" and words[9] == ""
    assert {row["step"] for row in rows} == {"2"}
    assert rows[3]["influence"] == "", "what has no value has an empty cell"
    assert rows[0]["accepted"] == "true"


def test_a_csv_cell_is_plain_text_unless_a_spreadsheet_would_compute_it(page: Page, small: str) -> None:
    go(page, small)
    written = page.evaluate(
        """async () => { const { csvCell } = await import('./static/csv.js');
          return ['a "b"', '=1+1', '+', '-x', '@y', ' =1', 2, true, null].map(csvCell); }"""
    )
    assert written == ['"a ""b"""', '"\'=1+1"', '"\'+"', '"\'-x"', '"\'@y"', '" =1"', "2", "true", ""]


def test_a_row_of_the_table_leads_to_its_token(page: Page, small: str) -> None:
    go(page, small, "#2/0?table=list&k=50&q=maybe")
    shown(page, "0/2/0/null")
    expect(page.locator(".tokenpanel tbody tr")).to_have_count(4)
    page.locator(".tokenpanel tbody tr").nth(2).locator("button").click()
    shown(page, "0/2/0/2")
    expect(page.locator(".inspector .chosen")).to_have_text("·maybe")


def test_tables_of_steps_and_responses_export_what_they_show(page: Page, small: str) -> None:
    go(page, small, "#2?verdict=rejected")
    page.locator(".stepview .datatable tbody tr").first.wait_for()
    with page.expect_download() as download:
        page.locator(".stepview .sectionhead", has_text="Responses").get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert [row["response"] for row in rows] == ["1", "3", "5", "7"]
    assert {row["accepted"] for row in rows} == {"rejected"}


def test_responses_of_a_group_can_be_ordered(page: Page, small: str) -> None:
    go(page, small, "#2/0?rows=verdict")
    shown(page, "0/2/0/null")
    order = "() => Array.from(document.querySelectorAll('.striplabel'), node => node.dataset.row).join()"
    assert page.evaluate(order) == "0,2,1,3"
    page.get_by_label("Order of the responses").select_option("length")
    page.wait_for_function(f"() => ({order})() === '0,1,2,3'")


def test_enter_and_arrows_do_not_wait_for_the_screen(page: Page, small: str) -> None:
    """Typing and moving within one task of the browser, before anything could be drawn."""
    go(page, small, "#2/0/0")
    shown(page, "0/2/0/0")
    page.evaluate(
        """() => { const field = document.getElementById('search'); field.value = 'maybe';
          field.dispatchEvent(new Event('input', { bubbles: true }));
          field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
          for (let i = 0; i < 2; i++)
            document.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true })); }"""
    )
    page.wait_for_function("() => location.hash.startsWith('#2/0/0/12?')")
