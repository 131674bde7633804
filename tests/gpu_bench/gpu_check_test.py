#!/usr/bin/env python3
"""tools/gpu_check on a bundle of stand-ins: what it plans, and what is left of a run that is cut short."""
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None  # folder of the tests' executables
LONGEST_PART = 480  # seconds: a lent machine takes commands of 10 minutes

LONGEST_COMMAND = 600  # seconds, the first calls included
SECOND = 0.2  # how long a second of a limit is where a test waits for it

# Every program of the bundle and of the machine but python3, mpirun and nvidia-smi.
STAND_IN = """#!/bin/bash
echo "$0 $*" >>"$CALLS"
# A machine that was just started: whoever calls in its first COLD seconds waits for their end.
mkdir "$CALLS.cold" 2>/dev/null
wait=$(awk "BEGIN { print $(stat -c %.Y "$CALLS.cold") + $COLD - $(date +%s.%N) }")
if [[ $wait != -* ]]; then sleep "$wait"; fi
case "$*" in
  *"$HANG"*) echo "it begins"; echo $$ >"$CALLS.hanging"; exec sleep 60 ;;
  *"$KILL"*) echo "it dies"; kill -KILL $$ ;;
  *"$KILL_PART"*) read -r _ _ _ part _ </proc/$PPID/stat; kill -KILL "$part" ;;
  *"$BREAK"*) echo "it broke"; exit 3 ;;
  *"$EMPTY"*) echo "[doctest] test cases: 0 | 0 passed" ;;
esac
case "$CARDS $*" in "0 "*cuda:*) echo "there are 0 CUDA devices"; exit 1 ;; esac
case "$(basename "$0") $1" in
  "nvidia-smi "*) for ((i = 0; i < CARDS; ++i)); do echo "GPU $i: Fake"; done ;;
  "lockstep doctor") echo "ok  CUDA driver 13.0"; echo "ok  cuda:0  Fake" ;;
  "lockstep bench") echo "| step | 12.3 (12.1 to 13.0) |"; echo "choice" >>"$LOCKSTEP_AUTOTUNE" ;;
  "lockstep train") all=$*; folder=${all##* -o }/ckpt; mkdir -p "$folder"; echo "weights" >"$folder/last.safetensors"; echo "mIoU 0.5" ;;
  *) echo "[doctest] test cases: 3 | 3 passed" ;;
esac
"""
MPIRUN = """#!/bin/bash
while [[ $1 != */lockstep ]]; do shift; done
exec "$@"
"""
PYTHON = f"""#!/bin/bash
case "$*" in
  "-c import ctypes"*) nvidia-smi probe | wc -l ;;
  "-c import torch"*) nvidia-smi torch ;;
  *) exec {sys.executable} -B "$@" ;;
esac
"""
GPU_BENCH = """import os, signal, sys
sections = " ".join(sys.argv[sys.argv.index("--sections") + 1:sys.argv.index("--tsv")])
print(f"figures of {sections}\\tmet\\t1.0", flush=True)
if os.environ["KILL"] in sections:
    os.kill(os.getpid(), signal.SIGKILL)
"""
NO_LIMIT = """#!/bin/bash
shift 3
"$@"
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
        for place in ("bin", "tools/measure", "lib"):
            (self.bundle / place).mkdir(parents=True)
        (self.bundle / "tools/gpu_check").write_text((ROOT / "tools/gpu_check").read_text())
        (self.bundle / "tools/measure/gpu_bench").write_text(GPU_BENCH)
        (self.bundle / "bin/liblockstep_mpi.so").touch()
        for name in ("lockstep", "test_backend", "test_cuda", "test_gpu", "compute-sanitizer", "nsys", "nvidia-smi"):
            self.write_program(name, STAND_IN)
        self.write_program("mpirun", MPIRUN)
        self.write_program("python3", PYTHON)

    def write_program(self, name, text):
        program = self.bundle / "bin" / name
        program.write_text(text)
        program.chmod(0o755)

    def start(self, *arguments, second=1, cold=0, cards=2, out="out.md", environment=None, **happens):
        """happens: {hang | kill | kill_part | break_ | empty: words of the command to which it does}"""
        never = "\v"  # no command holds it
        words = {name: happens.pop(name.lower() + ("_" if name == "BREAK" else ""), never)
                 for name in ("HANG", "KILL", "KILL_PART", "BREAK", "EMPTY")}
        assert not happens, happens
        environment = dict(os.environ) | {"LOCKSTEP_AUTOTUNE": ""} | words | (environment or {})
        environment.update(CALLS=str(self.bundle / "calls"), PATH=f"{self.bundle}/bin:{os.environ['PATH']}",
                           GPU_CHECK_SECOND=str(second), COLD=str(cold * second), CARDS=str(cards))
        to = ["--out", self.bundle / out] if out else []
        return subprocess.Popen(["bash", self.bundle / "tools/gpu_check", "run", *to, *arguments], env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                cwd=self.bundle)

    def run_all(self, *arguments, **options):
        """The exit status of a run of these parts, or of all."""
        process = self.start("--data", "somewhere", *arguments, **options)
        self.output, _ = process.communicate(timeout=300)
        return process.returncode

    def rows(self):
        """{check: (result, details)} of the table on disk"""
        lines = (self.bundle / "out.md").read_text().splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
        return {cell[0]: (cell[1], cell[2]) for cell in cells if cell[0] != "check"}

    def assert_left_behind(self, *bad, without_part=None):
        """The table has an ok row for every planned check but the bad ones; there are the log and the choices' file."""
        rows = self.rows()
        for part, _, check, *_ in plan():
            name = check.replace("benchmarks:", "figures of")
            if part in ("start", without_part) or name in bad or name == "CUDA graph, no dependent launches":
                continue
            self.assertIn(name, rows, self.output)
            self.assertIn(rows[name][0], ("ok", "met"), (name, rows[name]))
        self.assertEqual([name for name, (result, _) in rows.items() if result == "FAILED"], list(bad))
        self.assertEqual((rows["GPUs"], rows["first calls"][0]), (("ok", "2: GPU 0: Fake"), "ok"))
        log = (self.bundle / "out.log").read_text()
        for check in ("doctor", "memcheck", *(name for name in bad if not name.startswith("part "))):
            self.assertRegex(log, rf"===== .*: {check}\n")
        self.assertIn("choice", (self.bundle / "out.autotune.json").read_text())

    def test_no_part_may_take_longer_than_a_lent_machine_allows(self):
        seconds = {}
        for part, most, *_ in plan():
            seconds[part] = seconds.get(part, 0) + int(most)
        self.assertEqual(list(seconds), ["start", "1", "2", "5", "4", "3", "6", "7"])  # in the order in which they are done
        self.assertLessEqual(max(seconds.values()), LONGEST_PART)
        self.assertLessEqual(max(seconds.values()) + seconds["start"], LONGEST_COMMAND - 20)

    def test_checks_have_names_of_their_own_and_the_sanitizers_come_last(self):
        checks = [check for _, _, check, *_ in plan() if check != "doctor"]
        self.assertEqual(len(checks), len(set(checks)))
        self.assertEqual(checks[-8:-4], ["memcheck", "racecheck", "initcheck", "synccheck"])
        self.assertTrue(all(check.startswith(("memcheck, ", "racecheck, ")) for check in checks[-4:]), checks)

    def test_every_case_on_a_gpu_is_run(self):
        """Also where this build has none of the programs: cases are read from the source."""
        cases = re.findall(r'TEST_CASE\("([^"]+)"', (ROOT / "tests/gpu/data_parallel_gpu_test.cpp").read_text())
        patterns = [pattern for _, _, _, *command in plan() if command and "compute-sanitizer" not in command[0]
                    for names in re.findall(r"-tc=(.*)", command[0]) for pattern in names.split(",")]
        self.assertGreater(len(cases), 10)
        for case in cases:
            self.assertTrue(any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns), f"no row runs: {case}")

    def test_the_bundle_has_what_the_benchmarks_run(self):
        bundle = (ROOT / "tools/gpu_check").read_text().partition("bundle() {")[2].partition("\n}\n")[0]
        copied = {name for names in re.findall(r"cp [\w/]*{([\w.,]+)}", bundle) for name in names.split(",")}
        bench = (ROOT / "tools/measure/gpu_bench").read_text()
        for name in ("cudnn_batch_norm", "torch_batch_norm.py", "torch_unet.py"):
            self.assertIn(f'"{name}"', bench)
            self.assertIn(name, copied)

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
        process = self.start("--part", "1", break_="conv2d_test*", empty="-tc=one replica")
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
        self.start("--part", "1", break_="several synchronized").communicate(timeout=60)
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

    def test_a_doctor_that_hangs(self):
        self.assertEqual(self.run_all(second=SECOND, hang="doctor"), 1)
        self.assert_left_behind("doctor")
        self.assertEqual(self.rows()["doctor"], ("FAILED", "longer than 25 s: it begins"))
        hanging = int((self.bundle / "calls.hanging").read_text())
        self.assertFalse(pathlib.Path(f"/proc/{hanging}").exists(), "it was not ended")

    def test_tests_that_find_no_gpu_have_not_passed(self):
        self.write_program("test_gpu", "#!/bin/bash\necho 'a_test.cpp:1: MESSAGE: SKIPPED: no CUDA device answers'\n"
                                       "echo '[doctest] test cases: 1 | 1 passed'\n")
        self.assertEqual(self.run_all("--part", "1"), 1)
        self.assertEqual(self.rows()["transports, repeatability"], ("FAILED", "GPUs were counted, and the tests find none"))
        self.assertEqual(self.rows()["convolutions"][0], "ok")

    def test_a_program_that_is_killed(self):
        self.assertEqual(self.run_all(kill="-tc=one replica"), 1)
        name = "one replica on the GPU is one on the CPU"
        self.assert_left_behind(name)
        self.assertEqual(self.rows()[name], ("FAILED", "exit 137, by signal 9: it dies"))

    def test_benchmarks_that_are_killed_keep_their_rows(self):
        self.assertEqual(self.run_all(kill="large"), 1)
        self.assert_left_behind("benchmarks: large fcn")
        self.assertEqual(self.rows()["figures of large fcn"], ("met", "1.0"))

    def test_a_part_that_dies_with_its_shell(self):
        self.assertEqual(self.run_all(kill_part="-tc=the transports"), 1)
        self.assert_left_behind("part 1", without_part="1")
        rows = self.rows()
        self.assertEqual(rows["part 1"], ("FAILED", "it broke off: exit 137, by signal 9"))
        self.assertEqual(rows["one replica on the GPU is one on the CPU"][0], "ok")

    def test_a_cold_start_counts_against_no_check(self):
        self.assertEqual(self.run_all(second=SECOND, cold=40), 0, getattr(self, "output", ""))
        self.assert_left_behind()
        seconds = re.search(r"lockstep ([0-9.]+) s", self.rows()["first calls"][1])
        self.assertGreater(float(seconds[1]), 39 * SECOND)

    def test_a_program_that_cannot_be_killed_is_left_alone(self):
        self.write_program("timeout", NO_LIMIT)
        process = self.start("--part", "1", second=SECOND, hang="doctor")
        process.communicate(timeout=60)
        os.killpg(process.pid, signal.SIGKILL)
        self.assertEqual(self.rows()["doctor"], ("FAILED", "longer than 25 s: it begins"))
        self.assertEqual(self.rows()["convolutions"][0], "ok")

    def test_a_count_that_hangs_is_no_zero(self):
        self.write_program("nvidia-smi", "#!/bin/bash\nexec sleep 60\n")
        self.assertEqual(self.run_all("--part", "6", second=SECOND / 4, break_="model.width=4"), 1)
        rows = self.rows()
        self.assertEqual(rows["GPUs"], ("FAILED", "nobody says in 90 s how many there are; the checks are done as for one"))
        self.assertEqual(rows["memcheck"][0], "ok")

    def test_where_no_gpu_is_the_cpu_is_checked(self):
        self.assertEqual(self.run_all(cards=0), 0)
        rows = self.rows()
        self.assertEqual(rows["training on virtual CPU devices"], ("ok", "mIoU 0.5"))
        self.assertEqual(rows["everything on a GPU"][0], "SKIPPED")
        self.assertNotIn("doctor", rows)

    def test_one_gpu_and_no_tools_skip_what_needs_them(self):
        for name in ("compute-sanitizer", "nsys", "mpirun"):
            (self.bundle / "bin" / name).unlink()
        if any(shutil.which(name) for name in ("compute-sanitizer", "nsys", "ncu")):
            self.skipTest("SKIPPED: they are installed here")
        self.assertEqual(self.run_all("--part", "2", "--part", "6", cards=1), 0)
        rows = self.rows()
        self.assertIn("nsight-systems", rows["profile by kernel, U-Net 64, bf16"][1])
        for name in ("synccheck", "step on cuda:0,1 beside cuda:0x2"):
            self.assertEqual(rows[name][0], "SKIPPED")

    def test_a_profile_by_ncu_is_that_of_the_timed_steps_with_warm_caches(self):
        (self.bundle / "bin/nsys").unlink()
        if shutil.which("nsys"):
            self.skipTest("SKIPPED: nsys is installed here")
        self.write_program("ncu", STAND_IN)
        self.assertEqual(self.run_all("--part", "2"), 0)
        call = next(line for line in (self.bundle / "calls").read_text().splitlines() if "/ncu " in line)
        for flag in ("--cache-control none", "--profile-from-start off", f"--csv --log-file {self.bundle}/out.ncu.csv"):
            self.assertIn(flag, call)

    def test_files_land_in_OUT_with_the_choices_of_an_earlier_run(self):
        (self.bundle / "earlier.json").write_text("earlier\n")
        folder = self.bundle / "results"
        environment = {"OUT": str(folder), "LOCKSTEP_AUTOTUNE": str(self.bundle / "earlier.json")}
        self.assertEqual(self.run_all("--part", "6", out=None, environment=environment), 0)
        self.assertEqual(sorted(path.name for path in folder.iterdir()),
                         ["gpu_check.autotune.json", "gpu_check.log", "gpu_check.md"])
        self.assertEqual((folder / "gpu_check.autotune.json").read_text(), "earlier\nchoice\n")

    def test_wrong_arguments_are_named(self):
        for arguments, text in ((["--part", "9"], "a number from 1 to 7, not 9"), (["--only", "tests"], "--only"),
                                (["--part"], "--part")):
            process = self.start(*arguments)
            output, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 2)
            self.assertIn(text, output)


if __name__ == "__main__":
    unittest.main()
