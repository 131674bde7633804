"""A test is worth something only if it can fail: each fault is planted into a copy of the package, and a test must see it.
A check that is done in parts plants its part of them ($LOCKSTEP_CHECK_PART, K/N)."""
import os
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

torch = pytest.importorskip("torch")

THREADS, GLOO, LENS, CONVERT, READ, GREETING, PEERS, OWN, PARALLEL, PROGRAM = (
    "test_sync_threads.py", "test_sync_gloo.py", "test_lens.py", "test_convert.py", "test_read.py", "test_greeting.py",
    "test_peers_tests.py", "test_torch_compare.py", "test_data_parallel.py", "test_program.py")
WHOLE = "whole_batch"
FAULTS = {
    "the merge drops the distance of the means": (
        "torch/moments.py", " + delta.square() * (self.count * share)", "", THREADS, WHOLE),
    "the merge counts a rank twice": ("torch/moments.py", "Moments(count, self.mean", "Moments(count + other.count, self.mean", THREADS, WHOLE),
    "an empty rank is merged": ("torch/moments.py", "        if other.count == 0:\n            return self\n", "", THREADS, WHOLE),
    "two threads are exchanged": ("torch/groups.py", "posts = [self._posts[each] for each in range(self.size)]",
                                  "posts = [self._posts[each ^ 1 if self.size % 2 == 0 else each] for each in range(self.size)]",
                                  THREADS, "order"),
    "one rank merges in another order": (
        "torch/groups.py", "return self._shown  #", "return self._shown.flip(0) if rank else self._shown  #", THREADS, WHOLE),
    "two processes are exchanged": ("torch/process_group.py", 'b"".join(payloads[rank] for rank in range(self.size))',
                                    'b"".join(payloads[rank ^ 1] for rank in range(self.size))', GLOO, "empty"),
    "the master is blamed for a dead process": (
        "torch/process_group.py", "            raise self._gone(rank, call) from None\n        if",
        "            raise self._gone(0, call) from None\n        if", GLOO, "dies"),
    "anybody is a rank": ("torch/greeting.py", "secrets.compare_digest(question, self._passwords.question) and ", "", GREETING,
                          "strangers"),
    "whoever answers is the master": ("torch/greeting.py", "connection.complete and secrets.compare_digest(connection.heard, "
                                      "passwords.answer)", "connection.heard", GREETING, "knows_whom"),
    "backward drops the mean of the gradient": (
        "torch/fused.py", "-scale * of_mean", "0 * of_mean", THREADS, WHOLE),
    "backward drops the gradient of the variance": (
        "torch/fused.py", "-scale * of_variance", "0 * of_variance", THREADS, WHOLE),
    "backward divides by this rank's count": (
        "torch/synchronized.py", "total / max(ctx.count, 1)", "total / max(x.numel() // channels, 1)", THREADS, WHOLE),
    "the running variance is biased": ("torch/synchronized.py", "found.m2 / (found.count - 1)", "found.m2 / found.count", THREADS,
                                       WHOLE),
    "what is clamped has a gradient": ("torch/synchronized.py", "learns * invstd", "invstd", PEERS, "clamps"),
    "one replica's gradient is taken": ("torch/data_parallel.py", "torch.stack(there).sum(0)", "there[0]", "test_data_parallel.py", "whole"),
    "eps is forgotten": ("torch/fused.py", "False, 0.0, eps)", "False, 0.0, 0.0)", THREADS, WHOLE),
    "ranks may be in different layers": ("torch/groups.py", "        if call == calls[0]:\n",
                                         "        if call.values > 0:\n", THREADS, "skips"),
    "who has left is waited for": ("torch/groups.py", "            self._left.append(rank)\n", "", THREADS, "leaves"),
    "the last slice feeds the running statistics": (
        "torch/batch_norm.py", "first, *others = call.input.chunk(self.slices)", "*others, first = call.input.chunk(self.slices)",
        CONVERT, "ghost"),
    "a forward of its own is lost": ("torch/batch_norm.py", "    if old in (nn.SyncBatchNorm, BatchNormNd):\n", "    if old:\n", CONVERT, "its_own"),
    "who looks for a class misses what stands for it": ("torch/batch_norm.py", "    if old in (nn.SyncBatchNorm, BatchNormNd):\n",
                                                        "    if old in PLAIN:\n", CONVERT, "kinds"),
    "layers of other rows than images are cut into slices": ("torch/trial.py", "layer.training and rows is not None and",
                                                             "rows is None and", OWN, "other_rows"),
    "a training that nobody sees is paired": ("torch/trial.py", "if self._passes < self.steps:", "if False:", OWN, "not_called"),
    "images given by name are not seen": ("torch/trial.py", "seen = list(tensors_of([inputs, named]))",
                                          "seen = list(tensors_of([inputs, named]))[:1] or [torch.zeros(self.batch)]; seen[0] = "
                                          "torch.zeros(self.batch)", OWN, "however"),
    "checkpointed parts do not meet": ("torch/data_parallel.py", "with _meeting(ctx.replicas[member.rank], member):  #",
                                       "with _meeting(ctx.replicas[member.rank], ThreadGroup(1).member(0)):  #", PARALLEL,
                                       "checkpointed"),
    "hooks on gradients act on every rank": ("torch/data_parallel.py", "with _without_hooks(ctx.parameters):",
                                             "with _without_hooks(()):", PARALLEL, "hooks"),
    "rows are taken for images": ("torch/passes.py", "if len(x) != images:", "if False:", LENS, "rows_that"),
    "a layer out of a file trains alone": ("torch/process_group.py", "return Processes, (None, self.timeout)", "return Group, ()",
                                           CONVERT, "without_ranks"),
    "hooks are lost": ("torch/convert.py", "        layer.__dict__.update(own)\n",
                       "        layer.__dict__.update({**own, '_forward_hooks': {}})\n", CONVERT, "hooks"),
    "a batch norm that is no layer is not seen": ("torch/outside.py", "if stray and not", "if False and not",
                                                  LENS, "no_layer"),
    "a comparison of other initial weights is let pass": (
        "torch/compare.py", "        if end[key] != other[key]:", "        if end[key] != other[key] and key != 'initial_weights':", OWN,
        "checked"),
    "own statistics are scored by running ones": ("torch/trial.py", "own_statistics(copy.deepcopy(model)), self._evaluate",
                                                  "copy.deepcopy(model), self._evaluate", OWN, "ends_as"),
    "the variance between images is biased": ("torch/noise.py", "var(axis=0, ddof=1)", "var(axis=0)", LENS, "by_hand"),
    "the settled variance is biased": ("torch/noise.py", "each.m2 / max(1, each.count - 1)", "each.m2 / each.count", LENS,
                                       "by_hand"),
    "neighbours are merged without their distance": (
        "torch/noise.py", " + images.count * np.square(means - mean[:, None]).sum(axis=1)", "", LENS, "by_hand"),
    "the lens adds eps where the layer clamps": ("torch/passes.py", "isinstance(layer, ReplacingBatchNorm) and layer.answers:", "False:",
                                                 LENS, "clamps"),
    "running statistics have the activations' precision": ("torch/passes.py", ".to(own) for each", ".to(x) for each", LENS, "mixed"),
    "connections above select()'s are refused": ("torch/greeting.py", "    with selectors.DefaultSelector() as", "    with selectors.SelectSelector() as",
                                                 GLOO, "open_files"),
    "evaluations are steps": ("torch/trial.py", "        self._since = time.perf_counter()  # an evaluation is no part of a step\n", "", OWN,
                              "no_part"),
    "an error of rank 0 stays there": ("torch/trial.py", "        except Exception as error:\n", "        except LockstepError as error:\n", OWN,
                                       "rank_0"),
    "an interrupt is a failure of the program": ("errors.py", "    -signal.SIGINT: InterruptedRunError}", "}", PROGRAM, "interrupt_is_one"),
    "the lens leaves the model in evaluation": ("torch/hooks.py", "module.training = training", "module.training = False", LENS,
                                                  "left_as_it_was"),
    "steps that were trained again count twice": (
        "run.py", 'if earlier.get("step", 0) <= event["step"]', 'if True', READ, "resumed"),
    "a damaged line is skipped": ("_json_files.py", "if number == len(lines):\n                break",
                                  "if number:\n                continue", READ, "resumed"),
}

# torch.autograd.grad calls a parameter's hooks from PyTorch 2.0 on.
SEEN_FROM_TORCH_2 = {"hooks on gradients act on every rank"}

PART, PARTS = map(int, os.environ.get("LOCKSTEP_CHECK_PART", "1/1").split("/"))


@pytest.mark.parametrize("name", list(FAULTS)[PART - 1::PARTS])
def test_a_fault_is_seen(name, tmp_path):
    file, before, after, test, chosen = FAULTS[name]
    if test in (READ, OWN) and not os.environ.get("LOCKSTEP_PROGRAM"):
        pytest.skip("the test that sees it needs the program")
    if name in SEEN_FROM_TORCH_2 and int(torch.__version__.split(".")[0]) < 2:
        pytest.skip("this PyTorch does not show it")
    shutil.copytree(ROOT / "python", tmp_path / "python", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    source = tmp_path / "python/lockstep" / file
    text = source.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{file} has {text.count(before)} times: {before}"
    source.write_text(text.replace(before, after), encoding="utf-8")
    done = subprocess.run([sys.executable, "-B", str(ROOT / "tests/python/run.py"), "-x", str(ROOT / "tests/python" / test),
                           "-k", chosen], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "LOCKSTEP_PACKAGE": str(tmp_path / "python"), "PYTHONPATH": ""})
    assert done.returncode == 1 and " failed" in done.stdout, f"no test has seen it:\n{done.stdout[-2000:]}"
