"""read_run() and read_comparison(): what the program wrote comes back, and what is no run is told so."""
import json
import shutil
import struct
import subprocess

import numpy
import pytest

import lockstep
from lockstep import FormatError, MissingPackageError, read_comparison, read_run


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_s_numbers_are_those_of_its_files(small_run):
    run = read_run(small_run)
    assert (run.mode, run.seed, run.status) == ("sync", 0, "done")
    train = [line for line in lines(small_run / "scalars.json") if line["mode"] == "train"]
    assert list(run.scalars["step"]) == [2, 4]
    for name in ("loss", "lr", "grad_norm"):
        assert list(run.scalars[name]) == [line[name] for line in train]
    val = next(line for line in lines(small_run / "scalars.json") if line["mode"] == "val")
    evaluated = run.evaluations.where(eval_stats=val["eval_stats"], averaged=False)
    assert evaluated["mIoU"][0] == val["mIoU"] and evaluated["confusion"].shape == (1, 11, 11)
    assert evaluated["confusion"].sum() == 4 * 32 * 32 - ignored(evaluated)
    assert run.config["bn"]["mode"] == "sync" and run.config["data"]["size"] == [32, 32]
    assert run.environment["lockstep"] == run.header["environment"]["lockstep"]
    assert run.batch_norm.rows == 2 * 6 and set(run.batch_norm["parts"]) == {2}
    assert list(run.ranks.where(rank=1)["device"]) == ["cpu:1", "cpu:1"]
    assert list(run.timing["step"]) == [2, 4] and run.summary["iterations"] == 4
    assert [event["type"] for event in run.events][0] == "header" and run.events_of("checkpoint")


def ignored(evaluated):
    """Pixels without a label: all that the accuracy does not count."""
    counted = evaluated["confusion"][0].sum()
    right = numpy.trace(evaluated["confusion"][0])
    assert 100 * right / counted == pytest.approx(evaluated["aAcc"][0])
    return 4 * 32 * 32 - counted


def test_weights_are_those_of_the_program(small_run, program):
    arrays = read_run(small_run).state_dict()
    assert arrays["encoder.0.0.conv.weight"].shape == (4, 3, 3, 3) and arrays["encoder.0.0.conv.weight"].dtype == numpy.float32
    assert arrays["encoder.0.0.bn.num_batches_tracked"] == 4
    said = subprocess.run([program, "inspect", small_run / "ckpt/last.safetensors", "--json"], capture_output=True, text=True)
    for tensor in json.loads(said.stdout)["tensors"]:
        assert list(arrays[tensor["name"]].shape) == tensor["shape"]
    assert len(json.loads(said.stdout)["tensors"]) == len(arrays)
    assert set(read_run(small_run).state_dict("best")) == set(arrays)
    with pytest.raises(FormatError, match="no checkpoint 'first'; there are: best, iter_4, last"):
        read_run(small_run).state_dict("first")


def test_weights_as_the_safetensors_package_reads_them(small_run):
    package = pytest.importorskip("safetensors.numpy")
    theirs = package.load_file(str(small_run / "ckpt/last.safetensors"))
    ours = read_run(small_run).state_dict()
    assert set(theirs) == set(ours)
    assert all(numpy.array_equal(theirs[name], ours[name]) and theirs[name].dtype == ours[name].dtype for name in ours)


def test_weights_as_tensors(small_run):
    torch = pytest.importorskip("torch")
    from small_unet import UNet
    net = UNet(4, 2, 11)
    net.load_state_dict(read_run(small_run).state_dict(as_torch=True), strict=True)
    assert isinstance(net.head.bias, torch.nn.Parameter)


def test_tables(small_run):
    pandas = pytest.importorskip("pandas")
    run = read_run(small_run)
    frame = run.batch_norm.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame["layer"]) == list(run.batch_norm["layer"])
    assert run.evaluations.to_pandas()["confusion"][0].shape == (11, 11)
    with pytest.raises(KeyError, match="no column 'los'; there are step"):
        run.scalars["los"]
    table = lockstep.Table.from_records([{"a": 1, "b": None}, {"a": 2, "b": 0.5, "c": "x"}])
    assert table["a"].dtype == numpy.int64 and numpy.isnan(table["b"][0]) and table["c"][1] == "x" and table.rows == 2
    assert table.records()[1]["b"] == 0.5 and table.where(a=2).rows == 1


def test_a_table_is_shown():
    table = lockstep.Table.from_records([{"step": step, "loss": step / 3, "word": "<b>"} for step in range(30)])
    lines = str(table).splitlines()
    assert lines[0] == repr(table) == "Table of 30 rows: step, loss, word" and lines[1].split() == ["step", "loss", "word"]
    assert lines[3].split() == ["1", "0.333333", "<b>"] and lines[-1] == "... 10 more rows" and len(lines) == 23
    page = table._repr_html_()
    assert page.count("<tr>") == 21 and "&lt;b&gt;" in page and "10 more rows" in page
    assert str(lockstep.Table({})) == "Table of 0 rows: "


def test_a_killed_run_and_a_resumed_one(small_run, tmp_path):
    folder = shutil.copytree(small_run, tmp_path / "run")
    events = (folder / "events.jsonl").read_text().splitlines()
    kept = [line for line in events if json.loads(line)["type"] != "end"]
    (folder / "events.jsonl").write_text("\n".join(kept) + "\n" + kept[-1][:20])  # cut off by a kill
    assert read_run(folder).status == "no end" and read_run(folder).summary is None
    with open(folder / "events.jsonl", "ab") as file:  # or while a line is written, within a letter
        file.write("\n{\"type\": \"warning\", \"text\": \"ü".encode()[:-1])
    with pytest.raises(FormatError, match="expected a JSON object"):
        read_run(folder).events
    (folder / "events.jsonl").write_bytes("\n".join(kept).encode() + b"\n" + "{\"text\": \"ü".encode()[:-1])
    assert read_run(folder).status == "no end"
    again = [json.loads(line) for line in kept]
    resume = {**again[0], "type": "resume", "step": 2}
    repeated = [{**event, "loss": 7.0} for event in again if event["type"] == "rank" and event["step"] == 4]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, [*again, resume, *repeated])) + "\n")
    ranks = read_run(folder).ranks
    assert list(ranks["step"]) == [2, 2, 4, 4] and list(ranks.where(step=4)["loss"]) == [7.0, 7.0]
    broken = (folder / "scalars.json").read_text().splitlines()
    (folder / "scalars.json").write_text("{broken\n" + "\n".join(broken) + "\n")
    with pytest.raises(FormatError, match=r"scalars.json, line 1: expected a JSON object"):
        read_run(folder).scalars


def test_what_is_no_run(small_run, small_comparison, tmp_path):
    with pytest.raises(FormatError, match="there is none of this name"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="no events.jsonl in it"):
        read_run(tmp_path)
    with pytest.raises(FormatError, match="it is a comparison, for read_comparison"):
        read_run(small_comparison)
    with pytest.raises(FormatError, match="it is a run, for read_run"):
        read_comparison(small_run)
    (tmp_path / "events.jsonl").write_text('{"type":"header","schema":99}\n')
    with pytest.raises(FormatError, match="expected schema 1 or earlier, got 99; a later version"):
        read_run(tmp_path)
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(FormatError, match="expected a header in the first line"):
        read_run(tmp_path)
    for text, message in (("[]", "expected an object"), ("{", "expected JSON"), ('{"schema":1}', "KeyError 'score'")):
        (tmp_path / "comparison.json").write_text(text)
        with pytest.raises(FormatError, match=message):
            read_comparison(tmp_path)


def header(**tensors):
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize("data, message", [
    (b"", "got 0 bytes"), (b"\xff" * 8, "its header is said to have"), (struct.pack("<Q", 2) + b"[]", "no safetensors header"),
    (header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}) + b"1234", "takes 8 bytes, and stands at 0 to 8 of 4"),
    (header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + b"1234", "takes 8 bytes"),
    (header(a={"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}) + b"1234", "elements BF16, which NumPy has not"),
    (header(a={"shape": [2]}), "no safetensors header")])
def test_damaged_weights(data, message, tmp_path):
    from lockstep._safetensors import read_safetensors
    (tmp_path / "w.safetensors").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        read_safetensors(tmp_path / "w.safetensors")


def test_a_comparison_s_numbers_are_those_of_its_file(small_comparison):
    comparison = read_comparison(small_comparison)
    found = json.loads((small_comparison / "comparison.json").read_text())
    assert comparison.modes == ["local", "sync"] and comparison.seeds == [0, 1] and comparison.score_name == "mIoU"
    assert list(comparison.cells) == [mode["mode"] for mode in found["modes"]]
    rows = ["local(1)", "local(2)", "sync", "local(1) by own", "local(2) by own", "sync by own"]
    assert list(comparison.rows) == rows == [row["row"] for row in found["rows"]]
    assert comparison.best.row == found["best"]["row"] and comparison.best.claim.startswith("Highest: ")
    own = comparison.rows["local(2) by own"]
    assert (own.mode, own.eval_stats, own.score.n) == ("local(2)", "own", 2)
    assert all(score == found["rows"][4]["mIoU_by_seed"][str(seed)] for seed, score in own.by_seed.items())
    assert comparison.rows["sync"].eval_stats == "device0" and comparison.rows["sync"].score == comparison.cells["sync"].score
    assert comparison.cells["local(1)"].images == 1 and comparison.cells["local(1)"].mode == "local"
    for difference, pair in zip(comparison.differences, found["pairs"]):
        assert (difference.a, difference.b, difference.difference) == (pair["a"], pair["b"], pair["mean"])
        assert list(difference.interval) == pair["interval"] and difference.p == pair["p_value"]
        assert difference.p_adjusted == pair["p_sequence"] and difference.verdict == pair["verdict"]["text"]
        scores = [comparison.rows[name].by_seed for name in (difference.a, difference.b)]
        assert list(difference.by_seed) == pytest.approx([scores[0][seed] - scores[1][seed] for seed in (0, 1)], abs=1e-12)
    assert comparison.difference("sync", "local(1)").seeds == [0, 1]
    with pytest.raises(KeyError, match="no difference local - sync; there are: sync - local"):
        comparison.difference("local", "sync")
    curve = comparison.curve.to_table()
    assert comparison.curve.images_per_device == [1, 2, 4]  # with all images of a batch, local is sync
    assert comparison.curve.lines == ["local", "sync", "local by own", "sync by own"]
    assert list(curve["line"]) == ["local"] * 3 + ["sync"] + ["local by own"] * 3 + ["sync by own"]
    assert list(curve["mode"]) == (["local"] * 3 + ["sync"]) * 2
    assert list(curve["cell"])[2:] == ["sync", "sync", "local(1) by own", "local(2) by own", "sync by own", "sync by own"]
    assert list(curve["images"][:3]) == [1, 2, 4] and numpy.isnan(curve["images"][3])
    told = comparison.text.split("\n\n")[1].splitlines()  # all but what more images are worth
    assert told == comparison.answers.splitlines()[:len(told)] and len(told) == len(comparison.differences) - 1
    assert comparison.scores.rows == 2 * len(comparison.cells)
    for cell in comparison.cells.values():
        for seed, score in cell.by_seed.items():
            run = comparison.run(cell.name, seed)
            assert run.seed == seed and run.summary["evaluation"]["mIoU"] == score
    with pytest.raises(KeyError, match=r"no mode ghost; there are: local\(1\), local\(2\), sync"):
        comparison.run("ghost")
    with pytest.raises(KeyError, match="sync has no run of seed 7; its seeds are: 0, 1"):
        comparison.run("sync", 7)


def test_the_runs_of_a_comparison_of_other_folders(program, small_comparison, tmp_path):
    runs = [small_comparison / "sync-s0", small_comparison / "sync-s1"]
    subprocess.run([program, "compare", *runs, "--no-images", "-o", tmp_path / "again"], check=True, capture_output=True)
    comparison = read_comparison(tmp_path / "again")
    assert [comparison.run("sync", seed).seed for seed in (0, 1)] == [0, 1]
    assert comparison.run("sync", 1).path.samefile(runs[1])
    best = comparison.best
    assert best.row in ("sync", "sync by own") and not best.settled and best.better_than == []
    assert best.not_told_apart == [name for name in comparison.rows if name != best.row]
    assert str(comparison).splitlines()[:2] == comparison.text.splitlines()[:2] == [f"{best.claim}.", f"{best.cost}."]
    pair = json.loads((tmp_path / "again/comparison.json").read_text())["pairs"][0]
    assert comparison.differences[0].p_adjusted == pair["p_step_down"] and comparison.modes == ["sync"]


def test_a_comparison_of_an_earlier_version(small_comparison, tmp_path):
    """Without rows, adjusted by Holm."""
    found = json.loads((small_comparison / "comparison.json").read_text())
    del found["rows"], found["curve"], found["best"]
    found["pairs"] = [{**pair, "p_holm": 0.75} for pair in found["pairs"] if "own" not in pair["a"] + pair["b"]]
    for pair in found["pairs"]:
        del pair["p_sequence"]
    (tmp_path / "comparison.json").write_text(json.dumps(found))
    comparison = read_comparison(tmp_path)
    assert comparison.best is None and list(comparison.rows) == list(comparison.cells)
    assert comparison.rows["sync"].eval_stats is None and comparison.rows["sync"].by_seed == comparison.cells["sync"].by_seed
    assert {difference.p_adjusted for difference in comparison.differences} == {0.75} and comparison.modes == ["local", "sync"]


def test_a_comparison_that_does_not_tell_its_folders(small_comparison, tmp_path):
    found = json.loads((small_comparison / "comparison.json").read_text())
    for mode in found["modes"]:
        del mode["runs"]
    (tmp_path / "comparison.json").write_text(json.dumps(found))
    (tmp_path / "local-n1-s1").symlink_to(small_comparison / "local-n1-s1")
    assert read_comparison(tmp_path).run("local(1)", 1).seed == 1


def test_figures(small_run, small_comparison, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    comparison = read_comparison(small_comparison)
    axes = comparison.plot_curve()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == comparison.curve.lines
    assert [label.get_text() for label in comparison.plot_differences().get_yticklabels()] == [
        f"{each.a} - {each.b}" for each in comparison.differences]
    drawn = read_run(small_run).plot(["loss", "mIoU"])
    assert list(drawn.lines[0].get_ydata()) == list(read_run(small_run).scalars["loss"])
    with pytest.raises(KeyError, match="no column 'speed'"):
        read_run(small_run).plot("speed")
    drawn.figure.savefig(tmp_path / "run.png")


def test_the_figure_of_a_matrix(small_run):
    pytest.importorskip("matplotlib").use("Agg")
    axes = lockstep.read_run(small_run).plot("confusion")
    assert axes.get_xlabel() == "predicted" and len(axes.images) == 1 and len(axes.get_xticks()) == 11


def test_tensorboard(small_run, tmp_path):
    pytest.importorskip("torch")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = read_run(small_run)
    run.to_tensorboard(tmp_path)
    board = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in board.Scalars("train/loss")] == list(run.scalars["step"])
    assert board.Scalars("val/mIoU")[-1].value == pytest.approx(run.evaluations["mIoU"][0])
    assert "val by own/mIoU" in board.Tags()["scalars"]


def test_without_matplotlib_and_pandas(small_run, monkeypatch):
    import sys
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="pip install matplotlib"):
        read_run(small_run).plot()
    with pytest.raises(MissingPackageError, match="pip install pandas"):
        read_run(small_run).scalars.to_pandas()


def test_a_relative_path_outlives_the_folder_it_was_given_in(small_run, monkeypatch, tmp_path):
    monkeypatch.chdir(small_run.parent)
    run = lockstep.read_run(small_run.name)
    monkeypatch.chdir(tmp_path)
    assert run.scalars.rows > 0


@pytest.mark.parametrize("line", ["[1]", "{}"])
def test_lines_that_are_no_events(line, small_run, tmp_path):
    header = (small_run / "events.jsonl").read_text().splitlines()[0]
    (tmp_path / "events.jsonl").write_text(f"{header}\n{line}\n{header}\n")
    with pytest.raises(lockstep.FormatError, match="expected"):
        lockstep.read_run(tmp_path).status
