#!/usr/bin/env python3
"""tools/gpu_check on a bundle of stand-ins: what it plans, and what is left of a run that is cut short."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None  # folder of the tests' executables
LONGEST_PART = 480  # seconds: a lent machine takes commands of 10 minutes

STAND_IN = """#!/bin/bash
echo "$0 $*" >>"$CALLS"
case "$*" in
  *"$HANG"*) echo "it begins"; sleep 60 ;;
  *"$BREAK"*) echo "it broke"; exit 3 ;;
  *"$EMPTY"*) echo "[doctest] test cases: 0 | 0 passed" ;;
esac
case "$(basename "$0") $1" in
  "lockstep doctor") echo "ok  CUDA driver 13.0"; echo "ok  cuda:0  Fake" ;;
  "lockstep bench") echo "| step | 12.3 (12.1 to 13.0) |" ;;
  *) echo "[doctest] test cases: 3 | 3 passed" ;;
esac
"""


def plan():
    """[(part, seconds, check, command)]"""
    done = subprocess.run([ROOT / "tools/gpu_check", "plan", "--data", "somewhere"], capture_output=True, text=True,
                          check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.bundle = pathlib.Path(self.folder.name)
        for place in ("bin", "tools", "lib"):
            (self.bundle / place).mkdir()
        (self.bundle / "tools/gpu_check").write_text((ROOT / "tools/gpu_check").read_text())
        for name in ("lockstep", "test_backend", "test_cuda", "test_gpu", "compute-sanitizer"):
            program = self.bundle / "bin" / name
            program.write_text(STAND_IN)
            program.chmod(0o755)

    def start(self, *arguments, hang="-", breaks="-", empty="-"):
        never = "\n"  # no command holds a line break
        environment = dict(os.environ, CALLS=str(self.bundle / "calls"), PATH=f"{self.bundle}/bin:{os.environ['PATH']}",
                           HANG=hang if hang != "-" else never, BREAK=breaks if breaks != "-" else never,
                           EMPTY=empty if empty != "-" else never)
        return subprocess.Popen(["bash", self.bundle / "tools/gpu_check", "run", "--out", self.bundle / "out.md",
                                 *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, start_new_session=True)

    def rows(self):
        """{check: (result, details)} of the table on disk"""
        lines = (self.bundle / "out.md").read_text().splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
        return {cell[0]: (cell[1], cell[2]) for cell in cells[1:]}

    def test_no_part_may_take_longer_than_a_lent_machine_allows(self):
        seconds = {}
        for part, most, *_ in plan():
            seconds[part] = seconds.get(part, 0) + int(most)
        self.assertEqual(sorted(seconds), ["1", "2", "3", "4", "5", "6"])
        self.assertLessEqual(max(seconds.values()), LONGEST_PART)

    def test_checks_have_names_of_their_own_and_the_sanitizers_come_last(self):
        checks = [check for _, _, check, *_ in plan() if check != "doctor"]
        self.assertEqual(len(checks), len(set(checks)))
        self.assertEqual(checks[-2:], ["memcheck", "racecheck"])

    def test_every_filter_names_test_cases(self):
        if PROGRAMS is None or not (PROGRAMS / "test_gpu").exists():
            self.skipTest("SKIPPED: this build has no test_gpu")
        for _, _, check, *command in plan():
            words = command[0].split(" ") if command else []
            tests = [i for i, word in enumerate(words) if pathlib.Path(word).name.startswith("test_")]
            if not tests:
                continue
            name = pathlib.Path(words[tests[0]]).name
            filters = " ".join(words[tests[0] + 1:]).split(" -")  # a filter may hold spaces
            filters = [word if word.startswith("-") else "-" + word for word in filters]
            done = subprocess.run([PROGRAMS / name, *filters, "--count", "--no-version"], capture_output=True,
                                  text=True)
            count = [line for line in done.stdout.splitlines() if "unskipped test cases" in line]
            self.assertTrue(count and int(count[0].split()[-1]) > 0, f"{check}: {words}: {done.stdout}")

    def test_a_part_writes_its_rows_and_adds_to_the_table(self):
        process = self.start("--part", "1", breaks="conv2d_test*", empty="-tc=one replica")
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, output)
        rows = self.rows()
        self.assertEqual(rows["doctor"], ("ok", "ok  CUDA driver 13.0"))
        self.assertEqual(rows["operations but convolutions"][0], "FAILED")  # its filter excludes conv2d_test
        self.assertEqual(rows["convolutions"], ("FAILED", "exit 3: it broke"))
        self.assertEqual(rows["one replica on the GPU is one on the CPU"],
                         ("FAILED", "no test case has the names that it asks for"))
        self.assertEqual(rows["transports, repeatability"], ("ok", "[doctest] test cases: 3 / 3 passed"))
        self.assertNotIn("CUDA graph, no dependent launches", rows)  # only where one with them failed
        process = self.start("--part", "6")
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        rows = self.rows()
        self.assertEqual(rows["racecheck"][0], "ok")
        self.assertIn("convolutions", rows)
        self.assertNotIn("step", "".join((self.bundle / "calls").read_text().split("\n")[-3:]))

    def test_a_graph_that_fails_is_tried_without_dependent_launches(self):
        self.start("--part", "1", breaks="several synchronized").communicate(timeout=60)
        rows = self.rows()
        self.assertEqual(rows["CUDA graph, several replicas, local"][0], "ok")
        self.assertEqual(rows["CUDA graph, several replicas, sync"][0], "FAILED")
        self.assertEqual(rows["CUDA graph, no dependent launches"][0], "ok")

    def test_a_run_that_is_cut_short_keeps_what_is_done(self):
        process = self.start("--part", "1", hang="the transports")
        deadline = time.monotonic() + 60
        log = self.bundle / "out.log"
        while time.monotonic() < deadline and "it begins" not in (log.read_text() if log.exists() else ""):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        rows = self.rows()
        self.assertEqual(rows["convolutions"][0], "ok")
        self.assertEqual(rows["one replica on the GPU is one on the CPU"][0], "ok")
        self.assertNotIn("transports, repeatability", rows)
        self.assertTrue(log.read_text().rstrip().endswith("it begins"))

    def test_wrong_arguments_are_named(self):
        for arguments, text in ((["--part", "9"], "a number from 1 to 6, not 9"), (["--only", "tests"], "--only"),
                                (["--part"], "--part")):
            process = self.start(*arguments)
            output, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 2)
            self.assertIn(text, output)


if __name__ == "__main__":
    unittest.main()
