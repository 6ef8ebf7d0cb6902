"""Two steps or runs beside each other: lined up by prompt, and what is said where nothing lines up."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import go, shown
from playwright.sync_api import Page, expect
from small_traces import make_step, write_trace

from archer.viewer.serve import BackgroundServer

Serve = Callable[..., BackgroundServer]


def prompts(*groups: int) -> list[list[int]]:
    """Eight rows in two groups, each with the prompt of that number."""
    return [[0, 1, 2, 3, groups[row // 4]] for row in range(8)]


@pytest.fixture
def recurring(tmp_path: Path) -> Path:
    """Step 1 asks 4 and 5, step 2 asks 6 and 4, step 3 asks 7 and 8."""
    folder = tmp_path / "recurring"
    asked = {1: prompts(4, 5), 2: prompts(6, 4), 3: prompts(7, 8)}
    write_trace(
        folder / "influence_trace", {step: make_step(step, prompts=given) for step, given in asked.items()}
    )
    return folder


def chosen(page: Page, side: str) -> str:
    return page.get_by_label(f"Group {side}").input_value()


def test_groups_with_the_same_prompt_stand_beside_each_other(
    serve: Serve, page: Page, recurring: Path
) -> None:
    go(page, serve(recurring).url(), "#1?vs=0:2")
    shown(page, "0/1/null/null")
    assert (chosen(page, "A"), chosen(page, "B")) == ("0", "1")
    expect(page.locator(".common")).to_contain_text("1 of 2 prompts of A is also in B")
    for side in "AB":
        expect(page.locator(f'[data-side="{side}"] .promptline')).to_have_text("The answer is 4")
    shared = page.locator(".compareview > .datatable").first.locator("tbody tr")
    expect(shared).to_have_count(1)
    expect(shared.first).to_contain_text("The answer is 4")


def test_comparing_from_a_group_finds_its_prompt_in_the_step_before(
    serve: Serve, page: Page, recurring: Path
) -> None:
    go(page, serve(recurring).url(), "#2/1")
    shown(page, "0/2/1/null")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    assert (chosen(page, "A"), chosen(page, "B")) == ("1", "0")
    page.get_by_role("button", name="Swap sides").click()
    expect(page.get_by_label("Group B")).to_have_value("1")
    assert chosen(page, "A") == "0"


@pytest.mark.parametrize(("side", "other", "group", "follows"), [("A", "B", "0", "1"), ("B", "A", "1", "0")])
def test_choosing_a_group_brings_its_partner_to_the_other_side(
    serve: Serve, page: Page, recurring: Path, side: str, other: str, group: str, follows: str
) -> None:
    go(page, serve(recurring).url(), "#1/1?vs=0:2/0")
    shown(page, "0/1/1/null")
    assert (chosen(page, "A"), chosen(page, "B")) == ("1", "0"), "what the address says stands"
    page.get_by_label(f"Group {side}").select_option(group)
    expect(page.get_by_label(f"Group {other}")).to_have_value(follows)


def test_a_group_without_a_partner_leaves_the_other_side_alone(
    serve: Serve, page: Page, recurring: Path
) -> None:
    go(page, serve(recurring).url(), "#1/0?vs=0:2/1")
    shown(page, "0/1/0/null")
    page.get_by_label("Group A").select_option("1")
    expect(page.locator('[data-side="A"] .promptline')).to_have_text("The answer is 2")
    assert chosen(page, "B") == "1"


def test_a_shared_prompt_leads_both_sides_to_it(serve: Serve, page: Page, recurring: Path) -> None:
    go(page, serve(recurring).url(), "#1/1?vs=0:2/0")
    shown(page, "0/1/1/null")
    page.locator(".compareview > .datatable").first.locator("tbody button").first.click()
    expect(page.get_by_label("Group A")).to_have_value("0")
    expect(page.get_by_label("Group B")).to_have_value("1")


def test_steps_without_a_common_prompt_say_so(serve: Serve, page: Page, recurring: Path) -> None:
    go(page, serve(recurring).url(), "#1?vs=0:3")
    shown(page, "0/1/null/null")
    expect(page.locator(".common")).to_contain_text("No prompt of A is also in B")
    expect(page.locator(".compareview > .datatable").first).to_be_hidden()
    page.get_by_label("Step B").select_option("2")
    expect(page.get_by_label("Group B")).to_have_value("1")


def test_two_runs_are_lined_up_by_prompt(serve: Serve, page: Page, recurring: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_trace(other / "influence_trace", {1: make_step(9, prompts=prompts(5, 4))})
    go(page, serve(recurring, other).url(), "#1")
    page.get_by_role("heading", name="Step 1").wait_for()
    page.keyboard.press("c")
    expect(page.locator(".common")).to_contain_text("2 of 2 prompts of A are also in B")
    assert (chosen(page, "A"), chosen(page, "B")) == ("0", "1")
    page.get_by_label("Group A").select_option("1")
    expect(page.get_by_label("Group B")).to_have_value("0")
    page.get_by_label("Run B").select_option("0")
    expect(page.locator(".figures")).to_contain_text("B · recurring · step 1")


def test_a_run_without_that_step_shows_its_nearest(
    serve: Serve, page: Page, recurring: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write_trace(other / "influence_trace", {1: make_step(9)})
    go(page, serve(recurring, other).url(), "#3?vs=0:2")
    shown(page, "0/3/null/null")
    page.get_by_label("Run B").select_option("1")
    expect(page.locator(".figures")).to_contain_text("B · other · step 1")


def test_traces_without_prompts_cannot_be_lined_up_and_say_so(
    serve: Serve, page: Page, tmp_path: Path
) -> None:
    folder = write_trace(tmp_path / "bare" / "influence_trace", {step: make_step(step) for step in (1, 2)})
    for step in (1, 2):  # as the first traces of this kind were
        held = make_step(step).arrays()
        bare = {name: array for name, array in held.items() if not name.startswith("prompt_")}
        np.savez(folder / "steps" / f"step_{step:06}.npz", **bare)  # type: ignore[arg-type]
    go(page, serve(folder).url(), "#2?vs=0:1")
    shown(page, "0/2/null/null")
    expect(page.locator(".common")).to_contain_text("hold no prompts")
    expect(page.locator('[data-side="B"] .striplabel')).to_have_count(4)
