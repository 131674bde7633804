#!/usr/bin/env python3
"""How often `lockstep diagnose` was right with one image per device: its verdicts beside the answers of comparisons (docs/do/diagnose.md).

    tools/measure/experiments/diagnose_known_answers.py build/release/bin/lockstep CAMVID NUCLEI KINDS PACKAGED DIGITS

CAMVID and NUCLEI are folders of data sets, KINDS what nuclei_kinds.py made of NUCLEI, PACKAGED what real_data_test.py has kept, DIGITS what
digits.py wrote. The rule was chosen with the sets of SEEN in view, and each of these is also judged by what the others give: "by image" above
all that were not better so, "synchronize" below all that were.
"""
import argparse
import json
import math
import pathlib
import subprocess
from dataclasses import dataclass

CONFIGS = "data/configs/"
EXPOSURE = ("-s", "data.exposure=[0.15,80]")
# The best row by image minus `sync`, in points, and its 95 % interval; six seeds (docs/notes/experiments.md).
SEEN = {
    "nuclei": (8.55, 5.13, 11.97), "shapes": (17.10, 8.41, 25.79), "streets": (3.73, 0.91, 6.55), "stained": (-0.97, -1.21, -0.72),
    "camvid": (-1.45, -4.22, 1.32), "dark": (3.15, 2.84, 3.46), "brain": (-18.25, -26.25, -10.25), "stardist": (-2.24, -3.05, -1.42),
}
UNSEEN = {
    "camvid, exposure": (2.05, -1.32, 5.42), "brain, exposure": (12.68, 2.94, 22.42), "stardist, exposure": (29.76, 19.08, 40.44),
    "mnist": (-2.80, -3.99, -1.61), "digits": (-3.63, -4.96, -2.30),
}


@dataclass(frozen=True)
class Case:
    name: str
    between: float  # the largest share of a layer's variance between images
    factor: float  # by which an image's variance is off that of all
    verdict: str

    @property
    def difference(self):
        return {**SEEN, **UNSEEN}[self.name]

    @property
    def answer(self):
        _, low, high = self.difference
        return "by image" if low > 0 else "synchronize" if high < 0 else "not settled"

    def outcome(self, said):
        if said == "cannot tell":
            return "declined"
        return "unknown" if self.answer == "not settled" else "hit" if said == self.answer else "MISS"


def diagnose(program, name, arguments):
    output = subprocess.run([program, "diagnose", *arguments, "-d", "cpu:1", "--images-per-device", "1", "--json"], check=True,
                            capture_output=True, text=True).stdout
    said = json.loads(output)["by_images_per_device"][0]
    # A layer with one value per image and channel has no variance within an image, and is no part of the rule.
    layers = [each for each in said["layers"] if each["values"] > 1]
    factor = math.exp(sum(each["log_var_ratio"] for each in layers) / len(layers))
    return Case(name, max(each["missed"] for each in layers), factor, said["verdict"])


def sets(arguments):
    small = ("-s", f"data.root={arguments.camvid}", "-s", "data.resize=[90,120]", "-s", "data.augment.crop=[88,120]", "-s", "model.width=8")
    yield "shapes", (CONFIGS + "shapes.toml",)
    yield "streets", (CONFIGS + "quickstart.toml", "-s", "batch.global=8")
    yield "camvid", (CONFIGS + "camvid.toml", *small)
    yield "camvid, exposure", (CONFIGS + "camvid_exposure.toml", *small)
    for name, root in (("nuclei", arguments.nuclei), *((kind, arguments.kinds / kind) for kind in ("dark", "stained"))):
        yield name, (CONFIGS + "nuclei.toml", "-s", f"data.root={root}", "-s", "batch.global=8")
    for name, folder in (("brain", "brain"), ("stardist", "nuclei")):
        config = str(arguments.packaged / folder / "config.toml")
        yield name, (config,)
        yield f"{name}, exposure", (config, *EXPOSURE)
    for name in ("mnist", "digits"):
        yield name, (str(arguments.digits / f"{name}.toml"),)


def by_others(case, others):
    """What the factors of the other cases say."""
    is_above = case.factor > max(other.factor for other in others if other.answer != "by image")
    is_below = case.factor < min(other.factor for other in others if other.answer == "by image")
    return "cannot tell" if is_above == is_below else "by image" if is_above else "synchronize"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    for name in ("camvid", "nuclei", "kinds", "packaged", "digits"):
        parser.add_argument(name, type=pathlib.Path)
    arguments = parser.parse_args()
    cases = [diagnose(arguments.program, *each) for each in sets(arguments)]
    seen = [case for case in cases if case.name in SEEN]
    print("| set | between images | factor | by image - sync | answer | verdict | left out |")
    print("|:--|--:|--:|:--|:--|:--|:--|")
    for case in sorted(cases, key=lambda each: (each.name not in SEEN, -each.factor)):
        left_out = by_others(case, [other for other in seen if other is not case]) if case in seen else ""
        outcome = f"{left_out}: {case.outcome(left_out)}" if left_out else "not seen"
        difference, low, high = case.difference
        print(f"| {case.name} | {100 * case.between:.0f} % | {case.factor:.2f} | {difference:+.2f} [{low:+.2f}, {high:+.2f}] "
              f"| {case.answer} | {case.verdict}: {case.outcome(case.verdict)} | {outcome} |")


if __name__ == "__main__":
    main()
