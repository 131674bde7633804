"""What a page of HTML is made of that is one file. Light or dark as the reader's is."""
from html import escape
from typing import List

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2127; --soft: #5b6570; --rule: #dde2e7; --bar: #1667a8; --over: #b8500c; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #14181c; --ink: #e4e8eb; --soft: #9aa5af; --rule: #343c44; --bar: #62aeea; --over: #f0914d; }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.55rem; line-height: 1.3; }
h2 { font-size: 1.2rem; margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
p { max-width: 46rem; } .note { color: var(--soft); font-size: .87rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .7rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; font-weight: 400; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); white-space: normal; vertical-align: bottom; }
svg { display: block; width: 100%; max-width: 46rem; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.bar { fill: var(--bar); } .over { fill: var(--over); } .limit { stroke: var(--ink); stroke-dasharray: 3 2; }
"""
_ROW, _NAMES, _WIDTH, _FIGURES = 15, 250, 700, 60  # of a drawing, in its units


def document(title: str, body: List[str]) -> str:
    """The whole page."""
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
            f'initial-scale=1"><title>{title}</title><style>{_STYLE}</style></head>\n<body><main>\n' + "\n".join(body) +
            "\n</main></body></html>\n")


def table(header: List[str], rows: List[List[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>'


def bars(label: str, names: List[str], shares: List[float], limit: float) -> str:
    """A bar for each share; those of `limit` and more stand out."""
    scale = (_WIDTH - _NAMES - _FIGURES) / max(2 * limit, *shares)
    height = _ROW * len(shares) + 4
    shapes = []
    for row, (name, share) in enumerate(zip(names, shares)):
        top = _ROW * row
        kind = "over" if share >= limit else "bar"
        length = share * scale
        shapes.append(f'<text x="0" y="{top + 11}">{escape(_shortened(name))}</text>'
                      f'<rect class="{kind}" x="{_NAMES}" y="{top + 2}" width="{length:.1f}" height="{_ROW - 3}">'
                      f"<title>{escape(name)}: {100 * share:.2f} %</title></rect>"
                      f'<text x="{_NAMES + length + 5:.1f}" y="{top + 11}">{100 * share:.1f} %</text>')
    at = _NAMES + limit * scale
    shapes.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}"/>')
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">' + "\n".join(shapes) + "</svg>"


def _shortened(name: str) -> str:
    return name if len(name) <= 40 else "…" + name[-39:]
