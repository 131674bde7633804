"""What the tests of the program share: a training that takes seconds, and how it is asked for. sys.argv[1] is the program."""
import pathlib
import subprocess
import sys

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "data/configs/quickstart.toml"
SMALL = ["data.size=[32,32]", "model.width=4", "model.depth=2", "run.log_every=2"]


def overrides(keys):
    """The arguments that set these keys, "section.key=value" each."""
    return [word for key in keys for word in ("-s", key)]


def lockstep(*arguments):
    """stdout; ends the test where the program fails."""
    done = subprocess.run([sys.argv[1], *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
