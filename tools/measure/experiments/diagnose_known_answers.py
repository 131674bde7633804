#!/usr/bin/env python3
"""How often `lockstep diagnose` was right with one image per device: its verdicts beside the answers of comparisons (docs/do/diagnose.md).

    tools/measure/experiments/diagnose_known_answers.py build/release/bin/lockstep CAMVID NUCLEI KINDS

CAMVID and NUCLEI are folders of data sets, KINDS what nuclei_kinds.py made of NUCLEI. Each case is also judged by the share between images
that the other cases give: one and a half times the largest of those where no norm by image was shown to win.
"""
import argparse
import json
import pathlib
import subprocess
from dataclasses import dataclass

CONFIGS = "data/configs/"
# The best row by image minus `sync`, in points, and its 95 % interval; six seeds (docs/notes/experiments.md).
ANSWERS = {
    "nuclei": (8.55, 5.13, 11.97), "shapes": (17.10, 8.41, 25.79), "streets": (3.73, 0.91, 6.55), "stained": (-0.97, -1.21, -0.72),
    "camvid": (-1.45, -4.22, 1.32), "dark": (3.15, 2.84, 3.46),
}


@dataclass(frozen=True)
class Case:
    name: str
    between: float  # the largest share of a layer's variance between images
    bimodality: float  # of that layer
    verdict: str

    @property
    def answer(self):
        _, low, high = ANSWERS[self.name]
        return "by image" if low > 0 else "synchronize" if high < 0 else "not settled"

    def outcome(self, said):
        if said == "cannot tell":
            return "declined"
        return "unknown" if self.answer == "not settled" else "hit" if said == self.answer else "MISS"


def diagnose(program, name, arguments):
    output = subprocess.run([program, "diagnose", *arguments, "--images-per-device", "1", "--json"], check=True, capture_output=True,
                            text=True).stdout
    said = json.loads(output)["by_images_per_device"][0]
    # A layer with one value per image and channel has no variance within an image, and is no part of the rule.
    layer = max((each for each in said["layers"] if each["values"] > 1), key=lambda each: each["missed"])
    return Case(name, layer["missed"], layer["bimodality"], said["verdict"])


def sets(arguments):
    small = ("-s", f"data.root={arguments.camvid}", "-s", "data.resize=[90,120]", "-s", "data.augment.crop=[88,120]", "-s", "model.width=8")
    yield "shapes", (CONFIGS + "shapes.toml",)
    yield "streets", (CONFIGS + "quickstart.toml", "-s", "batch.global=8")
    yield "camvid", (CONFIGS + "camvid.toml", *small)
    for name, root in (("nuclei", arguments.nuclei), *((kind, arguments.kinds / kind) for kind in ("dark", "stained"))):
        yield name, (CONFIGS + "nuclei.toml", "-s", f"data.root={root}", "-s", "batch.global=8")


def by_others(case, others):
    """What the rule says with the threshold of the other cases."""
    limit = 1.5 * max(other.between for other in others if other.answer != "by image")
    return "by image" if case.between >= limit else "cannot tell"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    for name in ("camvid", "nuclei", "kinds"):
        parser.add_argument(name, type=pathlib.Path)
    arguments = parser.parse_args()
    cases = [diagnose(arguments.program, *each) for each in sets(arguments)]
    print("| set | between images | bimodality | by image - sync | answer | verdict | leave one out |")
    print("|:--|--:|--:|:--|:--|:--|:--|")
    for case in sorted(cases, key=lambda each: -each.between):
        left_out = by_others(case, [other for other in cases if other is not case])
        difference, low, high = ANSWERS[case.name]
        print(f"| {case.name} | {100 * case.between:.0f} % | {case.bimodality:.2f} | {difference:+.2f} [{low:+.2f}, {high:+.2f}] "
              f"| {case.answer} | {case.verdict}: {case.outcome(case.verdict)} | {left_out}: {case.outcome(left_out)} |")


if __name__ == "__main__":
    main()
