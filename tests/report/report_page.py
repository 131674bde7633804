#!/usr/bin/env python3
"""The page that `lockstep compare` and `lockstep report` write.

report_page.py LOCKSTEP: trains a tiny comparison, reads its page as HTML, and checks that it is whole, needs nothing but
itself, and says what comparison.json says. Where Chromium is installed the page is rendered, too, light and dark, wide
and as wide as a phone: nothing overflows, no label lies on another, the console is silent.
"""
import base64
import html
import html.parser
import json
import math
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
import zlib
from pathlib import Path

CONFIG = """[run]
max_iters = 6
log_every = 2
val_every = 3
[data]
layout = "streets"
size = [32, 48]
train_images = 8
val_images = 2
classes = ["<b>sky</b>", "a & b", "pole", "road", "'quoted'", "a class with a very long name that nobody reads", "sign",
           "fence", "car", "<script>alert(1)</script>", "bicyclist"]
[batch]
per_device = 2
[model]
width = 4
depth = 2
"""
VOID = {"meta", "img", "br", "hr", "link", "input"}
OPTIONAL_SELF_CLOSED = {"line", "rect", "path", "circle"}

failures: list[str] = []


def check(holds: bool, what: str) -> None:
    if not holds:
        failures.append(what)


class Table:
    def __init__(self, before: str) -> None:
        self.before = before  # heading of its section
        self.rows: list[list[str]] = []  # text of the cells
        self.values: list[list[float | None]] = []  # what they stand for, unrounded

    def row(self, name: str) -> list[float | None]:
        for cells, values in zip(self.rows, self.values):
            if cells[0] == name:
                return values
        raise KeyError(f"no row {name} in {self.rows}")


class Reader(html.parser.HTMLParser):
    """Reads tables and references, and checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tables: list[Table] = []
        self.headings: list[str] = []
        self.charts = 0
        self.unlabelled = 0
        self.headline = ""
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]
        check(not any(name.startswith("on") for name, _ in attrs), f"<{tag}> has a handler of events")
        check(tag not in ("script", "link", "iframe", "object", "embed", "base", "form"), f"the page has a <{tag}>")
        if tag == "svg":
            self.charts += 1
            self.unlabelled += 0 if attributes.get("aria-label") and attributes.get("role") == "img" else 1
        if tag == "table":
            self.tables.append(Table(self.headings[-1] if self.headings else ""))
        if tag == "tr":
            self.tables[-1].rows.append([])
            self.tables[-1].values.append([])
        if tag in ("td", "th"):
            self.tables[-1].rows[-1].append("")
            self.tables[-1].values[-1].append(None)
        if tag == "data":
            self.tables[-1].values[-1][-1] = float(attributes["value"])
        if tag == "h2":
            self.headings.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        check(tag in OPTIONAL_SELF_CLOSED or tag in VOID, f"<{tag}/> is no empty element")

    def handle_endtag(self, tag: str) -> None:
        check(bool(self.open) and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}")
        if self.open:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data
        if "h1" in self.open:
            self.headline += data
        if self.open and self.open[-1] == "h2":
            self.headings[-1] += data
        if self.tables and self.tables[-1].rows and ("td" in self.open or "th" in self.open):
            self.tables[-1].rows[-1][-1] += data


def run(arguments: list[str], expected: int = 0) -> str:
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    check(result.returncode == expected, f"{arguments[1:]} ended with {result.returncode}: {result.stderr[-2000:]}")
    return result.stdout + result.stderr


def read_page(path: Path) -> Reader:
    page = path.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(page)
    reader.close()
    check(reader.open == [], f"{path.name}: never closed: {reader.open}")
    for reference in reader.references:
        check(reference.startswith(("#", "data:image/png;base64,")), f"{path.name}: refers to {reference[:80]}")
    without_images = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]*", "", page)
    for word in ("http", "<script", "@import", "url(", "src=\"/", "javascript:"):
        check(word not in without_images, f"{path.name} has {word}")
    check(reader.charts > 0 and reader.unlabelled == 0, f"{path.name}: {reader.unlabelled} charts without a label")
    check(path.stat().st_size < 1_000_000, f"{path.name} has {path.stat().st_size} bytes")
    return reader


def same(found: float | None, expected: float | None, what: str) -> None:
    if expected is None or found is None:
        check(found is None and expected is None, f"{what}: the page says {found}, comparison.json {expected}")
    else:
        check(math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12), f"{what}: the page says {found}, comparison.json {expected}")


def table(reader: Reader, section: str, *header: str) -> Table:
    for candidate in reader.tables:
        if candidate.before == section and candidate.rows[0][: len(header)] == list(header):
            return candidate
    raise KeyError(f"section {section} has no table that begins with {header}: {[t.rows[0] for t in reader.tables]}")


def adjusted(pair: dict) -> float | None:
    """The p-value for those tested with it: all of a comparison, or those before it on a curve."""
    return pair["p_step_down"] if "p_step_down" in pair else pair["p_sequence"]


def is_told(pair: dict, comparison: dict) -> bool:
    """Whether a line of its own tells of the difference, and not only the table."""
    if "curve" in comparison:
        return not any((step["a"], step["b"]) == (pair["a"], pair["b"]) for step in comparison["curve"]["more_images"])
    mode = {row["row"]: row["mode"] for row in comparison["rows"]}
    as_run = all(mode[name] == name for name in (pair["a"], pair["b"]))
    best = comparison["best"]["row"]
    return as_run or mode[pair["a"]] == mode[pair["b"]] or best in (pair["a"], pair["b"])


def check_scores(reader: Reader, comparison: dict) -> None:
    score = comparison["score"]
    means = table(reader, "Score", "mode", "evaluated by", score)
    seeds = table(reader, "Score", score, "mean")
    modes = {mode["mode"]: mode for mode in comparison["modes"]}
    rows = sorted(comparison["rows"], key=lambda row: list(modes).index(row["mode"]))
    check(len(means.rows) == 1 + len(rows) > 1 + len(modes), f"{len(rows)} rows, of which the table has {means.rows}")
    for row, cells, values in zip(rows, means.rows[1:], means.values[1:]):
        by_image = row["row"] == row["mode"] == "group" or row["eval_stats"] == "own"
        check(cells[:2] == [row["mode"], "own" if by_image else "running"], f"{row['row']} is called {cells[:2]}")
        of_row = {**row, "train_loss": modes[row["mode"]]["train_loss"]}
        for column, key in ((2, score), (4, "val_loss"), (6, "train_loss")):
            same(values[column], of_row[key]["mean"], f"{row['row']}, {key}")
            same(values[column + 1], of_row[key]["sd"], f"{row['row']}, sd of {key}")
        for seed, value in row[score + "_by_seed"].items():
            same(seeds.row(row["row"])[seeds.rows[0].index(f"seed {seed}")], value, f"{row['row']}, seed {seed}")
    pairs = table(reader, "Score", "difference")
    for pair in comparison["pairs"]:
        row = pairs.row(f"{pair['a']} − {pair['b']}")
        few = [None, None, None, None]  # so few seeds have neither an interval nor p-values
        shown = few if pair["smallest_p"] > 0.05 else [*pair["interval"], pair["p_value"], adjusted(pair)]
        expected = [pair["mean"], pair["sd"], *shown, pair["smallest_p"]]
        for column, value in enumerate(expected + pair["differences"], start=1):
            same(row[column], value, f"{pair['a']} - {pair['b']}, {pairs.rows[0][column]}")
        check(not is_told(pair, comparison) or pair["answer"] in reader.text, f"the page does not say: {pair['answer']}")


def check_curve(reader: Reader, comparison: dict) -> None:
    """A row for each point of each line; the last point of `local` is sync's."""
    cells = table(reader, "Images per device", "mode", "images per device")
    rows = iter(cells.rows[1:])
    values = iter(cells.values[1:])
    for line in comparison["curve"]["lines"]:
        for point in line["points"]:
            row, value = next(rows), next(values)
            images = "any" if point["images"] is None else str(point["images"])
            check(row[:2] == [line["mode"], images], f"the curve's row {row}, expected {line['mode']}, {images}")
            score = point[comparison["score"]]
            for found, expected in zip(value[2:], [score["mean"], score["sd"], *(point["interval"] or (None, None))]):
                same(found, expected, f"the curve's {point['cell']}")
    check(next(rows, None) is None, "the curve's table has more rows than comparison.json has points")
    local = comparison["curve"]["lines"][0]
    check(local["mode"] == "local" and local["points"][-1]["cell"] == "sync", f"local ends at {local['points'][-1]}")
    check("local by own" in [line["mode"] for line in comparison["curve"]["lines"]], "no line of own statistics")
    check(reader.headline == comparison["best"]["claim"], f"the headline of a curve: {reader.headline}")


def check_times(reader: Reader, comparison: dict) -> None:
    times = table(reader, "Time", "mode", "devices")
    for mode in comparison["modes"]:
        row = times.row(mode["mode"])
        same(row[2], mode["ms_per_step"]["mean"], "ms per step")
        same(row[3], mode["ms_per_step"]["sd"], "sd of ms per step")
        same(row[4], mode["images_per_second"]["mean"], "images per second")
        same(row[6], None if mode["shares_cores"] else 100 * mode["waiting_share"]["mean"], "waiting")


def check_layers(reader: Reader, comparison: dict) -> None:
    """The last column of a heat map's table is the last step, of which comparison.json tells."""
    maps = [t for t in reader.tables if t.before == "BatchNorm"]
    check(len(maps) == 5, f"expected five heat maps (running means of local alone), got {len(maps)}")
    keys = ["between_within_mean"] * 2 + ["log_var_ratio"] * 2
    for heat_map, key, mode in zip(maps, keys, comparison["modes"] * 2):
        check(len(heat_map.rows) == 1 + len(mode["batch_norms"]), f"{key}: layers are missing")
        for layer in mode["batch_norms"]:
            same(heat_map.row(layer["layer"])[-1], layer[key], f"{mode['mode']}, {layer['layer']}, {key}")


def check_classes(reader: Reader, folder: Path) -> None:
    runs = {name: last_validation(folder / name / "scalars.json") for name in ("local-s0", "local-s1", "sync-s0", "sync-s1")}
    classes = table(reader, "Classes", "class", "local")
    differences = table(reader, "Classes", "class", "mean")
    names = [key[4:] for key in runs["local-s0"] if key.startswith("IoU.")]
    check([row[0] for row in classes.rows[1:]] == names, f"classes are {classes.rows}, expected {names}")
    for name in names:
        for column, mode in ((1, "local"), (3, "sync")):
            values = [value for run in runs if run.startswith(mode) and (value := runs[run]["IoU." + name]) is not None]
            same(classes.row(name)[column], sum(values) / len(values) if values else None, f"IoU of {name}, {mode}")
        for seed in (0, 1):
            a, b = runs[f"sync-s{seed}"]["IoU." + name], runs[f"local-s{seed}"]["IoU." + name]
            same(differences.row(name)[2 + seed], None if a is None or b is None else a - b, f"{name}, seed {seed}")


def last_validation(path: Path) -> dict:
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["mode"] == "val"][-1]


def check_curves(reader: Reader, folder: Path) -> None:
    losses = table(reader, "Training", "step")
    lines = map(json.loads, (folder / "sync-s1" / "scalars.json").read_text().splitlines())
    column = losses.rows[0].index("sync s1")
    expected = {str(line["step"]): line["loss"] for line in lines if line["mode"] == "train"}
    for step, loss in expected.items():
        same(losses.row(step)[column], loss, f"training loss at step {step}")
    check(len(losses.rows) == 1 + len(expected), f"{len(losses.rows) - 1} steps, expected {len(expected)}")


def check_configurations(reader: Reader) -> None:
    keys = table(reader, "Configurations", "key", "local", "sync")
    check([row[0] for row in keys.rows[1:]] == ["run.seed", "bn.mode"], f"keys that differ: {keys.rows[1:]}")
    check(keys.rows[2][1:] == ['"local"', '"sync"'], f"bn.mode: {keys.rows[2]}")


def palette_indices(png: bytes) -> bytes:
    """The pixels of an 8-bit palette PNG."""
    data, at, width = b"", 8, 0
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        chunk = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, color = struct.unpack(">IIBB", chunk[:10])
            check((depth, color) == (8, 3), f"a map of classes has {depth} bits and colour type {color}")
        if kind == b"IDAT":
            data += chunk
        at += size + 12
    rows, pixels, above = zlib.decompress(data), b"", bytes(width)
    for start in range(0, len(rows), width + 1):
        row = bytearray(rows[start + 1 : start + 1 + width])
        for x in range(width):
            left, up, corner = row[x - 1] if x else 0, above[x], above[x - 1] if x else 0
            nearest = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
            row[x] = (row[x] + (0, left, up, (left + up) // 2, nearest)[rows[start]]) % 256
        pixels, above = pixels + row, bytes(row)
    return pixels


def check_images(path: Path, reader: Reader, folder: Path) -> None:
    """Both validation images are in the page: their maps make the confusion matrix of the evaluation."""
    pictures: dict[str, list[bytes]] = {}
    for name, code in re.findall(r'<img alt="([^"]+) of [^"]+" src="data:image/png;base64,([^"]+)">', path.read_text(encoding="utf-8")):
        pictures.setdefault(name, []).append(palette_indices(base64.b64decode(code)))
    check(len(pictures.get("truth", [])) == 2, f"pictures: {[(name, len(maps)) for name, maps in pictures.items()]}")
    for mode in ("local", "sync"):
        counts = [[0] * 11 for _ in range(11)]
        for truth, predicted in zip(pictures["truth"], pictures[f"prediction of {mode}"]):
            for label, guess in zip(truth, predicted):
                if label < 11:
                    counts[label][guess] += 1
        lines = map(json.loads, (folder / f"{mode}-s0" / "events.jsonl").read_text().splitlines())
        expected = [line["summary"]["evaluation"]["confusion"] for line in lines if line["type"] == "end"][-1]
        check(counts == expected, f"{mode}: the pictures say {counts}, the evaluation {expected}")
    check("Of the first 2 validation images the 2 on which the modes disagree" in reader.text, "the rule of the choice is missing")


MEASURE = """
function measure(frame) {
  const page = frame.contentDocument, width = page.documentElement.clientWidth, found = [];
  if (page.documentElement.scrollWidth > width) found.push(`the page is ${page.documentElement.scrollWidth} wide`);
  for (const e of page.querySelectorAll('body *')) {
    if (!e.closest('.scroll') && !e.closest('svg') && e.getBoundingClientRect().right > width + 1)
      found.push(`<${e.tagName}> ends at ${e.getBoundingClientRect().right}: ${e.textContent.slice(0, 40)}`);
  }
  for (const svg of page.querySelectorAll('svg.chart')) {
    const box = svg.getBoundingClientRect(), name = svg.getAttribute('aria-label');
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (const [text, r] of texts) {
      if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1)
        found.push(`${name}: "${text}" leaves the drawing`);
    }
    for (let i = 0; i < texts.length; ++i) for (let j = 0; j < i; ++j) {
      const a = texts[i][1], b = texts[j][1];
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (x > 1 && y > 3) found.push(`${name}: "${texts[i][0]}" lies on "${texts[j][0]}"`);
    }
  }
  const style = page.defaultView.getComputedStyle(page.body);
  document.getElementById('result').textContent =
      JSON.stringify({found, charts: page.querySelectorAll('svg.chart').length, paper: style.backgroundColor});
}
"""


def render(chromium: str, page: str, width: int, dark: bool, folder: Path) -> dict:
    frame = folder / "frame.html"
    # Chromium's windows are never as narrow as a phone: a frame is.
    frame.write_text(
        f"<meta charset='utf-8'><meta name='color-scheme' content='light dark'><script>{MEASURE}</script><pre id='result'></pre>"
        f"<iframe width='{width}' height='2000' style='border:0' onload='measure(this)' srcdoc=\"{html.escape(page)}\"></iframe>",
        encoding="utf-8",
    )
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
               f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
               "--window-size=1300,2200", "--dump-dom", frame.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    check(not console, f"the console says: {console[:3]}")
    shown = re.search(r"<pre id=\"result\">(.*?)</pre>", result.stdout, re.DOTALL)
    if not shown or not shown.group(1):
        check(False, f"Chromium rendered nothing: {result.stderr[-1000:]}")
        return {"found": [], "charts": 0, "paper": ""}
    return json.loads(html.unescape(shown.group(1)))


def check_rendered(pages: list[Path], folder: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("report_page: rendering SKIPPED: no Chromium here (apt-get install chromium fonts-dejavu-core)")
        return
    for path in pages:
        page = path.read_text(encoding="utf-8")
        check(">street val/" in page, f"{path.name}: no image has a name")
        page = page.replace(">street val/", ">/data/of_a_camera_whose_folders_have_no_blank_in_their_names/images/val/")
        papers = {}
        for width, dark in ((1200, False), (390, False), (390, True)):
            result = render(chromium, page, width, dark, folder)
            for problem in result["found"]:
                check(False, f"{path.name}, {width} wide, {'dark' if dark else 'light'}: {problem}")
            papers[dark] = result["paper"]
        check(papers[True] != papers[False], f"{path.name}: light and dark are both {papers[True]}")


def main() -> int:
    lockstep = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.toml").write_text(CONFIG)
        runs = folder / "runs"
        said = run([lockstep, "compare", str(folder / "tiny.toml"), "-d", "cpu:2", "--modes", "local,sync", "--seeds", "2",
                    "-o", str(runs)])
        check(f"report: {runs / 'report.html'}" in said, f"compare does not name its report: {said[-300:]}")
        comparison = json.loads((runs / "comparison.json").read_text())
        page = read_page(runs / "report.html")
        check_scores(page, comparison)
        check_times(page, comparison)
        check_layers(page, comparison)
        check_classes(page, runs)
        check_curves(page, runs)
        check_configurations(page)
        check_images(runs / "report.html", page, runs)
        check(page.headline == comparison["best"]["claim"], f"the headline: {page.headline}")
        check("2 seeds are too few to settle what is best" in page.headline, f"the headline: {page.headline}")
        check(comparison["best"]["cost"] in page.text, "the page does not say what the best costs")

        said = run([lockstep, "report", str(runs), "-o", str(folder / "again.html"), "--figures", str(folder / "figures")])
        check((folder / "again.html").read_bytes() == (runs / "report.html").read_bytes(), "report and compare write different pages")
        figures = sorted((folder / "figures").glob("*.svg"))
        check(len(figures) == page.charts, f"{len(figures)} files of {page.charts} figures")
        for figure in figures:
            xml.etree.ElementTree.parse(figure)

        curve = folder / "curve"
        run([lockstep, "compare", str(folder / "tiny.toml"), "-d", "cpu:1", "--modes", "local,sync,group,renorm",
             "--images-per-device", "1,2,4", "--seeds", "2", "-s", "batch.global=4", "-s", "bn.groups=2", "-o", str(curve)])
        of_curve = json.loads((curve / "comparison.json").read_text())
        page_of_curve = read_page(curve / "report.html")
        check_scores(page_of_curve, of_curve)
        check_times(page_of_curve, of_curve)
        check_curve(page_of_curve, of_curve)
        run([lockstep, "report", str(curve), "-o", str(folder / "again.html")])
        check((folder / "again.html").read_bytes() == (curve / "report.html").read_bytes(), "a curve read again has another page")

        run([lockstep, "report", str(runs / "sync-s1")])
        single = read_page(runs / "sync-s1" / "report.html")
        check(single.headline.startswith("sync, seed 1: mIoU"), f"the headline of a run: {single.headline}")
        check("difference" not in single.text.lower(), "a run alone has no differences")
        run([lockstep, "report", str(runs), "-o", str(folder / "plain.html"), "--no-images"])
        check("Images" not in read_page(folder / "plain.html").headings, "--no-images leaves images in")
        (runs / "sync-s0" / "ckpt" / "last.safetensors").unlink()
        run([lockstep, "report", str(runs), "-o", str(folder / "without.html")])
        without = read_page(folder / "without.html").text
        check("Example images are left out: " in without and "holds no checkpoint" in without, "nothing tells why there are no images")
        run([lockstep, "report", str(folder)], expected=3)
        run([lockstep, "report", str(runs), "-o", str(folder / "nowhere" / "report.html")], expected=2)
        check_rendered([runs / "report.html", runs / "sync-s1" / "report.html", curve / "report.html"], folder)
    for failure in failures[:20]:
        print("report_page:", failure)
    print(f"report_page: {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
