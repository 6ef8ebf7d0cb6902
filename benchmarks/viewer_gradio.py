"""The page of the original design, as it was: Gradio, two `gr.HTML` panes, one coloured span per token."""

from typing import Any

import gradio as gr
from fastapi import FastAPI
from viewer_pages import SpanPages

from archer.viewer.security import Access
from archer.viewer.serve import BackgroundServer

# Click a button, wait until both panes hold its answer, then for the second frame.
SHOW = """async (name) => { const start = performance.now();
  document.getElementById(name).click();
  while (document.querySelectorAll(`[data-shown="${name}"]`).length < 2)
    await new Promise(done => setTimeout(done, 1));
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - start; }"""
PANE = "[data-shown]"
CSS = "[data-shown] {height: 520px; overflow: auto; font: 14px/26px monospace; white-space: pre-wrap}"


def gradio_pages(pages: SpanPages) -> BackgroundServer:
    """Serves the page; buttons `response-ROW` and `group` fill the panes."""
    names = [f"response-{row}" for row in range(3)] + ["group"]

    def answer(name: str) -> tuple[str, ...]:
        panes = pages.body("/" + name.replace("-", "/")).split("\0")
        return tuple(f'<div data-shown="{name}">{pane}</div>' for pane in panes)

    with gr.Blocks(analytics_enabled=False, fill_width=True) as blocks:
        with gr.Row():
            panes = [gr.HTML(), gr.HTML()]
        with gr.Row():
            for name in names:
                gr.Button(name, elem_id=name).click(lambda chosen=name: answer(chosen), outputs=panes)

    def make(_: Access) -> Any:
        return gr.mount_gradio_app(FastAPI(), blocks, path="/", css=CSS, ssr_mode=False)

    return BackgroundServer(make, Access.of("127.0.0.1", 0))
