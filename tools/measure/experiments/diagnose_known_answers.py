#!/usr/bin/env python3
"""How often `lockstep diagnose` was right: its verdicts beside the answers of comparisons (docs/notes/experiments.md).

    tools/measure/experiments/diagnose_known_answers.py build/release/bin/lockstep CAMVID [BACKBONE]

CAMVID is the folder of CamVid in its 11-class form. BACKBONE, a file of weights, adds the fine-tuning. Every case is
judged by the threshold that the other cases give (leave one out), and by the one that all other data sets give.
"""
import argparse
import json
import subprocess
from dataclasses import dataclass

CONFIGS = "data/configs/"


@dataclass(frozen=True)
class Case:
    data: str  # cases of one data set are left out together
    arguments: tuple
    images: int  # per device
    gain: float  # of synchronizing, in points
    low: float  # end of its 95 % interval

    @property
    def shown(self):
        return self.low > 0


def cases(camvid, backbone):
    root = ("-s", f"data.root={camvid}")
    streets = (CONFIGS + "quickstart.toml", "-s", "batch.global=8")
    plain = (CONFIGS + "camvid.toml", *root, "-s", "model.width=8")
    exposure = (CONFIGS + "camvid_exposure.toml", *root, "-s", "model.width=8")
    small = (*plain, "-s", "data.resize=[90,120]", "-s", "data.augment.crop=[88,120]")
    shapes = (CONFIGS + "shapes.toml", "-s", "batch.global=128")
    finetune = (CONFIGS + "finetune.toml", "-s", f"model.backbone_weights={backbone}")
    found = [
        Case("streets", streets, 1, +8.91, +5.46), Case("streets", streets, 2, +0.28, -1.76),
        Case("streets", streets, 4, -0.73, -2.39),
        Case("CamVid", plain, 1, +4.87, +3.29), Case("CamVid", plain, 2, +3.22, +0.36),
        Case("CamVid", plain, 4, +1.05, -1.14),
        Case("CamVid, exposure varies", exposure, 1, +5.50, +3.38),
        Case("CamVid, exposure varies", exposure, 2, -0.93, -2.42),
        Case("CamVid, exposure varies", exposure, 4, -1.03, -2.91),
        Case("CamVid", small, 1, +5.59, +2.38),
        Case("shapes", shapes, 16, -7.5, -15.0),
    ]
    if backbone:
        found.append(Case("finetune", finetune, 1, +8.00, +7.58))
        found.append(Case("finetune", (*finetune, "-s", "model.frozen_bn=true"), 1, +0.89, +0.08))
    return found


def diagnose(program, case, more):
    output = subprocess.run([program, "diagnose", *case.arguments, *more, "--images-per-device", str(case.images), "--json"],
                            check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def threshold(known):
    """Two thirds of the least that is missed where a difference was shown, which is off by a fifth by chance."""
    return 2 / 3 * min(missed for case, missed in known if case.shown)


def verdict(case, missed, limit):
    if missed < limit:
        return "not needed"
    return "synchronize" if case.images == 1 else "cannot tell"


def outcome(case, said):
    if said == "cannot tell":
        return "declined"
    return "hit" if (said == "synchronize") == case.shown else "MISS"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("camvid")
    parser.add_argument("backbone", nargs="?")
    parser.add_argument("more", nargs="*", help="-- further arguments of every diagnosis")
    arguments = parser.parse_args()
    known = []
    built_in = {}
    for case in cases(arguments.camvid, arguments.backbone):
        result = diagnose(arguments.program, case, arguments.more)
        said = result["by_images_per_device"][0]
        known.append((case, said["missed"]))
        built_in[case] = said["verdict"]
    print("| data | images per device | sync - local | missed | verdict | leave one out | leave its data set out |")
    print("|:--|--:|--:|--:|:--|:--|:--|")
    counts = [{}, {}, {}]
    for case, missed in known:
        limits = [threshold([(c, m) for c, m in known if c is not case]),
                  threshold([(c, m) for c, m in known if c.data != case.data])]
        said = [built_in[case]] + [verdict(case, missed, limit) for limit in limits]
        for count, word in zip(counts, said):
            count[outcome(case, word)] = count.get(outcome(case, word), 0) + 1
        told = [f"{word}: {outcome(case, word)}" for word in said]
        name = case.data + (" 120x90" if "data.resize=[90,120]" in case.arguments else "") + (
            ", frozen backbone" if "model.frozen_bn=true" in case.arguments else "")
        print(f"| {name} | {case.images} | {case.gain:+.2f} | {100 * missed:.1f} % | " + " | ".join(told) + " |")
    print(f"\nthe program, leave one out, leave the data set out: {counts}")
    print(f"threshold that all cases give: {100 * threshold(known):.1f} %")


if __name__ == "__main__":
    main()
