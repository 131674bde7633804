#!/usr/bin/env python3
"""Ten questions of newcomers: from the first screen of README.md, two clicks lead to the answer.

    questions_test.py ROOT

The first click is docs/learn/questions.md, which has a section for each question. The second is a link of this section, to a
page or to a part of one that has the words of the whole answer. Prints the ways, and exits with 1 where one is missing.
"""
import re
import sys
from pathlib import Path

from style_test import title_anchor

FIRST_SCREEN = 40  # lines
PAGE = "docs/learn/questions.md"
# What the whole answer must say, by the title of the question.
ANSWERS = {
    "How do I install it?": ["tools/setup", "apt install", "--prefix"],
    "How do I train on my own images and masks?": ["ROOT/masks/train", "same file stem", "mask_values", "palette"],
    "Can I resume on another number of devices?": ["--resume", "another number of devices", "bitwise identical"],
    "What does p mean?": ["sign-flip", "within seeds", "2/2^n"],
    "Which norm for one or two images per GPU?": ["images per device", "bn.eval_stats = \"own\"", "lies between images"],
    "Can I start from torchvision's weights?": ["torchvision.models", "model.backbone_weights", "--init"],
    "How do I predict a folder of images?": ["_overlay.png", "a palette, index = class"],
    "How do I use two machines?": ["mpirun", "The same program", "The same configuration"],
    "It hangs. What now?": ["py-spy", "drop_last"],
    "Is it faster than PyTorch?": ["ms per step", "PyTorch 2", "peak MB"],
}


def titles(lines):
    """(line, rank, title) of every title; a comment of a code block is none."""
    code = False
    for at, line in enumerate(lines):
        code ^= line.lstrip().startswith("```")
        found = None if code else re.match(r"(#+) (.*)", line)
        if found:
            yield at, len(found.group(1)), found.group(2)


def sections(text):
    """{title: its part of the page, up to the next title of its rank or above}"""
    lines = text.splitlines()
    marks, found = list(titles(lines)), {}
    for at, rank, title in marks:
        end = next((later for later, its_rank, _ in marks if later > at and its_rank <= rank), len(lines))
        found[title] = "\n".join(lines[at:end])
    return found


def links(text):
    return re.findall(r"\]\(([^)\s:]+)\)", text)


def target_text(page, link):
    """What a reader sees who follows the link: the part that it names, or the whole page."""
    path, _, anchor = link.partition("#")
    text = ((page.parent / path) if path else page).read_text()
    if not anchor:
        return text
    return next(part for title, part in sections(text).items() if title_anchor(title) == anchor)


def main():
    root = Path(sys.argv[1])
    first_screen = "\n".join((root / "README.md").read_text().splitlines()[:FIRST_SCREEN])
    page, wrong = root / PAGE, 0
    if PAGE not in links(first_screen):
        print(f"the first {FIRST_SCREEN} lines of README.md have no link to {PAGE}")
        wrong += 1
    answers = sections(page.read_text())
    for question, words in ANSWERS.items():
        ways = [link for link in links(answers.get(question, ""))
                if all(word in target_text(page, link) for word in words)]
        wrong += not ways
        print(f"{question} README.md > {PAGE} > {ways[0]}" if ways else f"{question} no link of its section leads to {words}")
    print(f"questions: {wrong} without a way")
    return 1 if wrong or len(ANSWERS) != 10 else 0


if __name__ == "__main__":
    sys.exit(main())
