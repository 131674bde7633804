"""The page of a diagnosis: verdicts, their table, and every layer, as one file of HTML. Light or dark as the reader's is."""
from html import escape
from typing import List

from .diagnosis import EFFECTS, LAYER_COLUMNS, Diagnosis, ImagesDiagnosis, count_of, layer_rows
from .noise import MISSED

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


def page_of(diagnosis: Diagnosis) -> str:
    """The whole page. Every figure is a table, too."""
    title = "BatchNorm's statistics of a few images"
    body = [f"<h1>{_headline(diagnosis)}</h1>",
            f"<p>{diagnosis.images} images of {'×'.join(map(str, diagnosis.size)) or 'one value'} went forward through the "
            f"network, with {diagnosis.weights} weights. Nothing was trained.</p>",
            *(f"<p>{escape(line)}</p>" for line in diagnosis.notes())]
    if diagnosis.shares_statistics:
        body += [f"<p>{escape(line)}</p>" for line in diagnosis.verdicts()]
        if any(each.verdict == "by image" for each in diagnosis.by_images):
            body.append('<p class="note">By image: a norm of one image, as InstanceNorm, or BatchNorm with one image per device '
                        "that is evaluated by each image's own statistics.</p>")
        body += ["<h2>What so many images per device do</h2>", _table(EFFECTS, diagnosis.effects()),
                 '<p class="note">Variance missed: the share of a layer\'s variance that statistics of so many images do not '
                 "see, in the layer where it is largest. Logits: distances in standard deviations of the logits. In evaluation "
                 "running statistics normalise. By own statistics: the loss of each image normalised by its own.</p>"]
    for each in diagnosis.by_images:
        body += [f"<h2>{count_of(each.images_per_device)} per device</h2>", _drawing(each),
                 '<p class="note">Variance missed by each layer, in the order in which they are called. From the dashed line '
                 f"on, at {100 * MISSED:.1f} %, it can matter. Bimodality of the images' means: 0.33 of a normal distribution, "
                 "near 1 of two heaps.</p>",
                 "<details><summary>Numbers</summary>", _table(LAYER_COLUMNS, layer_rows(each)), "</details>"]
    body.append('<p class="note">A comparison on your own data is the answer; these figures say whether it is worth its time. '
                "The rule is that of lockstep diagnose.</p>")
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
            f'initial-scale=1"><title>{title}</title><style>{_STYLE}</style></head>\n<body><main>\n' + "\n".join(body) +
            "\n</main></body></html>\n")


def _headline(diagnosis: Diagnosis) -> str:
    if not diagnosis.shares_statistics:
        return "Nothing that ran is shared" if diagnosis.not_run else "Nothing is shared: there is nothing to synchronize"
    told = {"by image": "normalise by image", "synchronize": "synchronize"}
    parts = []
    for verdict, advice in told.items():
        numbers = [each.images_per_device for each in diagnosis.by_images if each.verdict == verdict]
        if numbers:
            parts.append(f"{advice} with {count_of(*numbers)} per device")
    if parts:
        text = "; ".join(parts)
        return text[0].upper() + text[1:]
    if all(each.verdict == "not needed" for each in diagnosis.by_images):
        return "Synchronizing is not needed"
    return "Forward passes cannot tell whether to synchronize"


def _table(header: List[str], rows: List[List[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>'


def _drawing(images: ImagesDiagnosis) -> str:
    """A bar for each layer, as long as the share that it misses."""
    most = max(2 * MISSED, images.worst.missed)
    scale = (_WIDTH - _NAMES - _FIGURES) / most
    height = _ROW * len(images.layers) + 4
    shapes = []
    for row, layer in enumerate(images.layers):
        top = _ROW * row
        kind = "over" if layer.missed >= MISSED else "bar"
        length = layer.missed * scale
        shapes.append(f'<text x="0" y="{top + 11}">{escape(_shortened(layer.layer))}</text>'
                      f'<rect class="{kind}" x="{_NAMES}" y="{top + 2}" width="{length:.1f}" height="{_ROW - 3}">'
                      f"<title>{escape(layer.layer)}: {100 * layer.missed:.2f} %</title></rect>"
                      f'<text x="{_NAMES + length + 5:.1f}" y="{top + 11}">{100 * layer.missed:.1f} %</text>')
    limit = _NAMES + MISSED * scale
    shapes.append(f'<line class="limit" x1="{limit:.1f}" x2="{limit:.1f}" y1="0" y2="{height}"/>')
    return (f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Variance missed, {count_of(images.images_per_device)} '
            f'per device">' + "\n".join(shapes) + "</svg>")


def _shortened(name: str) -> str:
    return name if len(name) <= 40 else "…" + name[-39:]
