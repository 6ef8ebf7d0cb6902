"""How the HTML report looks: the viewer's colours, light and dark."""

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #fbfaf6; --raised: #ffffff; --ink: #1c1d22; --muted: #66645d; --line: #e3e0d6; --rule: #b9b4a4;
  --accent: #2f5d9e; --bar: #7d9bc6; --positive: #c2443a; --negative: #2f74b8; --strong: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181d; --raised: #1d2026; --ink: #e8e6e1; --muted: #a09d94; --line: #2e3138; --rule: #5b606b;
    --accent: #8fb4ea; --bar: #4d6fa3; --positive: #d96a4f; --negative: #4f94d8; --strong: #ffffff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
main { max-width: 1280px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { margin: 0; font-size: 1.7rem; font-weight: 650; letter-spacing: -0.012em; }
h2 { margin: 0 0 6px; font-size: 1.12rem; font-weight: 650; }
section { margin-top: 40px; }
.lead, .caption { margin: 2px 0 12px; color: var(--muted); max-width: 82ch; }
.caption { font-size: 0.92rem; }
ul { margin: 0; padding-left: 20px; max-width: 92ch; }
li { margin: 4px 0; }
ul.findings {
  list-style: none; padding: 14px 20px; background: var(--raised); border: 1px solid var(--line);
  border-left: 3px solid var(--accent); border-radius: 6px;
}
code, pre { font: 0.88em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
h1 code { font-size: 0.92em; color: var(--accent); }
pre, .wide {
  overflow-x: auto; padding: 14px 16px; background: var(--raised); border: 1px solid var(--line);
  border-radius: 6px;
}
details { margin: 6px 0; }
summary { cursor: pointer; color: var(--accent); }
svg { display: block; font-size: 12.5px; }
svg text { fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .head { font-weight: 600; font-size: 13px; }
svg .tick { fill: var(--muted); font-size: 11.5px; }
svg .value { paint-order: stroke; stroke: var(--raised); stroke-width: 4px; }
svg .cell { font-size: 11px; }
svg .strong { font-size: 11px; fill: var(--strong); }
svg .bar { fill: var(--bar); }
svg g:hover .bar { fill: var(--accent); }
svg .empty { fill: var(--line); opacity: 0.45; }
svg line.grid { stroke: var(--line); }
svg line.mark { stroke: var(--rule); stroke-dasharray: 3 3; }
svg line.thin { stroke: var(--bar); stroke-width: 1.5; }
svg line.thick { stroke: var(--bar); stroke-width: 9; }
svg .median { fill: var(--accent); stroke: var(--raised); }
table { border-collapse: collapse; font-size: 0.8rem; font-variant-numeric: tabular-nums; }
th, td { white-space: nowrap; }
table caption { caption-side: bottom; padding-top: 8px; text-align: left; color: var(--muted); }
th, td { padding: 4px 9px; text-align: right; border-bottom: 1px solid var(--line); font-weight: 400; }
thead th { color: var(--muted); border-bottom-color: var(--rule); }
th:first-child, td:last-child, table.text td { text-align: left; }
tbody tr:hover { background: color-mix(in oklab, var(--accent) 7%, transparent); }
@media print { .wide { overflow: visible; border: none; padding: 0; } }
"""
