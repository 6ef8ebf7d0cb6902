"""The page a browser gets that has no token yet: one field, no script."""

import base64
import hashlib
import html

STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf6; --ink: #1c1d22; --muted: #66645d; --line: #d3cfc2;
  --accent: #2f5d9e; --on: #fff; --bad: #b23c2e }
@media (prefers-color-scheme: dark) { :root { --paper: #16181d; --ink: #e8e6e1; --muted: #a09d94;
  --line: #42464f; --accent: #8fb4ea; --on: #16181d; --bad: #f0897a } }
html { background: var(--paper); color: var(--ink);
  font: 16px/1.6 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif }
main { max-width: 30rem; margin: 22vh auto 0; padding: 0 1.2rem }
h1 { font-size: 1.5rem; font-weight: 650; margin: 0 0 .4rem }
p { color: var(--muted); margin: 0 0 1.2rem }
p.wrong { color: var(--bad) }
form { display: flex; gap: .5rem }
label { position: absolute; clip-path: inset(50%) }
input, button { font: inherit; color: inherit; padding: .4rem .7rem; border-radius: 7px;
  border: 1px solid var(--line); background: none }
input { flex: 1; min-width: 0 }
button { background: var(--accent); border-color: var(--accent); color: var(--on); cursor: pointer }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


def token_page(advice: str, wrong: bool) -> bytes:
    """The page; `wrong` when a token came that is not the viewer's."""
    said = '<p class="wrong" role="alert">That is not the token of this viewer.</p>' if wrong else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Archer · token</title><style>{STYLE}</style></head>
<body><main><h1>This viewer needs its token</h1>
<p>{html.escape(advice)}</p>{said}
<form method="get"><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" placeholder="Token" required autofocus>
<button>Open</button></form></main></body></html>
""".encode()
