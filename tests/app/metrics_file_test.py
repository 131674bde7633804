#!/usr/bin/env python3
"""prometheus_client's own reader of OpenMetrics text takes what run.metrics_file gets, while a training runs and when it has ended.

    metrics_file_test.py LOCKSTEP

Says SKIPPED without the package prometheus_client (python3 -m venv .metrics && .metrics/bin/pip install prometheus_client).
"""
import pathlib
import subprocess
import sys
import tempfile

from small_run import CONFIG, SMALL, overrides

try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
    from prometheus_client.parser import text_string_to_metric_families as old_format
except ImportError as error:
    print(f"SKIPPED: {sys.executable} has no prometheus_client ({error})")
    sys.exit(0)

KEYS = [*SMALL, "data.train_images=8", "data.val_images=2", "run.max_iters=6", "run.val_every=2"]


def samples(text):
    return {(sample.name, sample.labels.get("state")): sample for family in text_string_to_metric_families(text)
            for sample in family.samples}


with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "lockstep.prom"
    keys = KEYS + [f"run.metrics_file={file}", "run.name='a \"quoted\" name \\ of a run'"]
    command = [sys.argv[1], "train", CONFIG, "-d", "cpu:2", "-o", pathlib.Path(folder) / "run"]
    run = subprocess.Popen([*map(str, command), *overrides(keys)], stdout=subprocess.DEVNULL)
    seen = set()
    while run.poll() is None:  # whenever the file is there, it is whole
        if file.exists():
            seen.add(samples(file.read_text())[("lockstep_steps_total", None)].value)
    if run.returncode != 0:
        sys.exit(f"exit code {run.returncode}")
    text = file.read_text()
    last = samples(text)
    assert last[("lockstep_steps_total", None)].value == 6, text
    assert last[("lockstep_run_state", "done")].value == 1, text
    assert last[("lockstep_run_info", None)].labels["run"] == 'a "quoted" name \\ of a run', text
    assert 0 <= last[("lockstep_validation_miou_ratio", None)].value <= 1, text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["lockstep_steps"].type == "counter" and families["lockstep_step_seconds"].unit == "seconds", text
    older = sum(len(family.samples) for family in old_format(text))  # as node_exporter reads it
    assert older == len(last), f"{older} samples in the older format, {len(last)} in OpenMetrics"
    if list(file.parent.glob("*.tmp")):
        sys.exit("a temporary file is left")
    print(f"{len(last)} samples of {len(families)} families; steps seen on the way: {sorted(seen)}")
