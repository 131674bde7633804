#!/usr/bin/env python3
"""Installs a build elsewhere, the program alone and everything, and runs it from a folder that knows nothing of the source.

install_test.py SOURCE BUILD LOCKSTEP.
"""
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def run(*command, expect=0, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != expect:
        sys.exit(f"{' '.join(map(str, command))} exits with {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def check(holds, what):
    if not holds:
        sys.exit(f"install: {what}")


def subcommands_of(program):
    text = run(program, "--help").stdout
    listed = text[text.index("Subcommands:"):text.index("Examples:")]
    return re.findall(r"^  (\w+) ", listed, re.MULTILINE)


def check_tree(source, prefix):
    share = prefix / "share/lockstep"
    for page in (source / "docs").rglob("*.md"):
        name = page.relative_to(source)
        check((share / name).read_text() == page.read_text(), f"{name} is not installed")
    check((share / "docs/learn/example_report.html").is_file(), "the example of a report is not installed")
    for config in (source / "data/configs").glob("*.toml"):
        check((share / "data/configs" / config.name).is_file(), f"{config.name} is not installed")
    check((prefix / "share/bash-completion/completions/lockstep").is_file(), "no completion for bash")
    check((prefix / "share/zsh/site-functions/_lockstep").is_file(), "no completion for zsh")
    for folder in ("include", "lib"):
        check(not (prefix / folder).exists(), f"the program brings {folder}/, which belongs to the component dev")


def check_program(program, prefix, folder):
    docs = json.loads(run(program, "docs", "--json", cwd=folder).stdout)
    names = {page["name"] for page in docs}
    check({"readme", "data", "run_folder", "install"} <= names, f"docs lists {sorted(names)}")
    for page in docs:
        check(page["path"].startswith(str(prefix)), f"docs names {page['path']}, which is not installed")
        check(page["title"], f"the page {page['name']} has no title")
    check(run(program, "docs", "run_folder", cwd=folder).stdout.startswith("# The run folder\n"), "docs prints no page")
    missing = run(program, "docs", "run_foldr", expect=2, cwd=folder)
    check("did you mean run_folder?" in missing.stderr, missing.stderr)
    # An example configuration is found from everywhere, and said where.
    trained = run(program, "train", "data/configs/quickstart.toml", "-d", "cpu:2", "--max-iters", "2", "-s",
                  "data.size=[32,48]", "-s", "data.train_images=8", "-s", "data.val_images=2", "-o", "run", cwd=folder)
    check(f"taking {prefix}/share/lockstep/data/configs/quickstart.toml" in trained.stderr, trained.stderr)
    check("Iter(train) [2/2]" in trained.stdout, trained.stdout)


def check_everything(source, build, prefix):
    """As after tools/quickstart, which builds the program and nothing else. What is installed can be taken away."""
    for archive in build.glob("liblockstep.a"):
        archive.unlink()
    run("cmake", "--install", build, "--prefix", prefix)
    check(len(list(prefix.glob("lib*/**/liblockstep.a"))) == 1, "the library is not installed")
    check((prefix / "share/lockstep/examples/CMakeLists.txt").is_file(), "the library's examples are not installed")
    # The manifest of this installation alone: the build may have others, of folders that are in use.
    manifests = prefix.parent / "manifests"
    manifests.mkdir()
    shutil.copy(build / "install_manifest.txt", manifests)
    (prefix / "include/mine.h").write_text("// not of the project\n")
    run("cmake", f"-DBUILD={manifests}", "-P", source / "cmake/uninstall.cmake")
    left = [str(file.relative_to(prefix)) for file in prefix.rglob("*") if not file.is_dir()]
    check(left == ["include/mine.h"], f"uninstall leaves {left}")
    check(not (prefix / "include/lockstep").exists(), "uninstall leaves empty folders of its own")


def main():
    source, build = (Path(word).resolve() for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        prefix, elsewhere = Path(folder) / "prefix", Path(folder) / "elsewhere"
        elsewhere.mkdir()
        run("cmake", "--install", build, "--prefix", prefix, "--component", "program", "--strip")
        program = prefix / "bin/lockstep"
        subcommands = subcommands_of(program)
        check_tree(source, prefix)
        check_program(program, prefix, elsewhere)
        alone = Path(folder) / "lockstep"
        shutil.copy(program, alone)
        lost = run(alone, "docs", expect=2, cwd=elsewhere)
        check("expected the documentation in" in lost.stderr, lost.stderr)
        check_everything(source, build, Path(folder) / "everything")
    print(f"install: {len(subcommands)} subcommands")


main()
