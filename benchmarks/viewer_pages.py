"""The page of the original design, for comparison: one coloured span per token, delivered as HTML.

This is what a Gradio `gr.HTML` component does with its value: a string of markup arrives from the server and
is set as the component's content. Gradio itself adds its own transport and front end on top; where it is not
installed, this page stands for it and is the more favourable of the two.
"""

import html
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab

SHELL = """<!doctype html><meta charset="utf-8">
<style>.pane{height:520px;overflow:auto;font:14px/26px monospace;white-space:pre-wrap}
#panes{display:grid;grid-template-columns:1fr 1fr;gap:20px}</style>
<div id="panes"><div class="pane"></div><div class="pane"></div></div>"""


def spans(texts: list[str], values: np.ndarray, bound: float) -> str:
    """One span per token, coloured inline."""
    parts = []
    for text, value in zip(texts, values.tolist(), strict=True):
        share = 0.0 if value != value else max(-1.0, min(1.0, value / bound))
        red, blue = (255, 255 - int(160 * share)) if share > 0 else (255 + int(160 * share), 255)
        parts.append(
            f'<span title="{value:.4g}" style="background:rgb({red},220,{blue})">{html.escape(text)}</span>'
        )
    return "".join(parts)


class SpanPages:
    """Serves the shell at /, one response at /response/ROW and the whole group at /group: two panes each."""

    def __init__(self, step: TraceStep, vocab: Vocab) -> None:
        assert step.influence is not None
        self._step, self._vocab = step, vocab
        self._bounds = [
            float(np.nanpercentile(np.abs(array), 99)) for array in (step.entropies, step.influence)
        ]
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = pages.body(self.path).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where the shell is."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()

    def body(self, path: str) -> str:
        """What the server answers: markup of both panes, divided by a NUL."""
        parts = path.strip("/").split("/")
        if parts[0] not in ("group", "response"):
            return SHELL
        rows = range(self._step.rows) if parts[0] == "group" else [int(parts[1])]
        return "\0".join(self._pane(metric, rows) for metric in (0, 1))

    def _pane(self, metric: int, rows: "range | list[int]") -> str:
        step = self._step
        lines = []
        for row in rows:
            length = int(step.lengths[row])
            texts = self._vocab.decode(step.responses[row, :length].tolist()).tokens()
            values = step.entropies if metric == 0 else step.influence
            assert values is not None
            lines.append(
                f"<p>{spans(texts, values[row, :length].astype(np.float32), self._bounds[metric])}</p>"
            )
        return "".join(lines)
