#!/usr/bin/env python3
"""Makes of the nuclei two data sets of one kind each, by links: OUT/dark (fluorescence, gray PNG) and OUT/stained (RGB PNG).

    tools/measure/experiments/nuclei_kinds.py NUCLEI OUT
    tools/measure/experiments/which_norm nuclei FOLDER OUT/dark
"""
import pathlib
import sys

GRAY = (0, 4)  # colour types of a PNG, byte 25


def main():
    root, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    for image in sorted(root.glob("images/*/*.png")):
        with open(image, "rb") as file:
            kind = "dark" if file.read(26)[25] in GRAY else "stained"
        for what in ("images", "masks"):
            link = out / kind / what / image.parent.name / image.name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(root / what / image.parent.name / image.name)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
