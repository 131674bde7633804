"""The package as a whole: types, the notebook, an installed copy."""
import json
import os
import re
import subprocess
import sys

import pytest

import lockstep
from conftest import ROOT


def cells(notebook):
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
            if cell["cell_type"] == "code"]


def output(*arguments):
    """What Python says with these arguments."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


NOTEBOOK = ROOT / "python/examples/compare.ipynb"


def test_the_notebook_s_cells(program, capsys):
    try:
        import matplotlib
        matplotlib.use("Agg")
    except ImportError:
        pass
    names = {}
    for cell in cells(NOTEBOOK):
        exec(compile(cell, str(NOTEBOOK), "exec"), names)
    said = capsys.readouterr().out
    assert "sync - local(1) = " in said and "more seeds could settle it" in said and "encoder.0.0.bn" in said
    assert names["comparison"].curve.images_per_device == [1, 2, 4]


def test_the_notebook_in_jupyter(program):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=120).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_types(tmp_path):
    """mypy --strict, by the types that the installed NumPy and PyTorch have."""
    pytest.importorskip("mypy")
    version = output("-m", "mypy", "--version")
    if re.match(r"mypy (0|1\.0)\.", version):
        pytest.skip(f"{version.split(' (')[0]} knows less of NumPy's and PyTorch's types")
    for package in ("numpy", "torch"):
        pytest.importorskip(package)
    caller = tmp_path / "caller.py"
    caller.write_text("""import numpy
from torch import nn
from lockstep.torch import convert, lens, revert

class Net(nn.Sequential): ...

net: Net = revert(convert(Net(nn.BatchNorm2d(3))))
layer: nn.BatchNorm2d = convert(nn.BatchNorm2d(3))
lens(net, [], numpy.array([1, 2]), images=numpy.int64(8))
lens(net, [], {1, 2})
lens(net, [], "12")
""")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir", os.devnull,
                           "lockstep", "examples", str(caller)], cwd=ROOT / "python", capture_output=True, text=True)
    wrong = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(wrong) == 1 and 'caller.py:11: error: Argument 3 to "lens"' in wrong[0], done.stdout


def test_the_oldest_python_reads_it():
    import ast
    for file in (ROOT / "python").rglob("*.py"):
        ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=(3, 9))


def test_only_lockstep_torch_imports_pytorch():
    done = subprocess.run([sys.executable, "-c", "import sys, lockstep; print('torch' in sys.modules, 'pandas' in sys.modules, "
                           "'matplotlib' in sys.modules)"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3
    without = subprocess.run([sys.executable, "-c", "import sys; sys.modules['torch'] = None; import lockstep.torch"],
                             capture_output=True, text=True)
    assert "lockstep.torch needs the package torch, which is not installed: pip install torch" in without.stderr


def test_without_the_compiled_module():
    """lockstep.native says what it lacks, and the rest of the package does without."""
    without = subprocess.run([sys.executable, "-c", "import sys; sys.modules['lockstep_native'] = None; import lockstep.native"],
                             capture_output=True, text=True)
    assert "lockstep.native needs the compiled module lockstep_native" in without.stderr
    check = ("import sys, types; sys.modules['lockstep_native'] = types.SimpleNamespace(**dict.fromkeys(['DataParallel', "
             "'ImportSummary', 'Predictor', 'StepResult', 'load_weights', 'save_safetensors'], type('Any', (), {}))); import lockstep.native; "
             "lockstep.native._check_processor(sys.argv[1])")
    for flags, said in (("flags : sse2 avx fma bmi2", "lacks avx2; use another machine"), ("flags : sse2 avx2 fma bmi2", ""),
                        ("Features : asimd", "")):
        done = subprocess.run([sys.executable, "-c", check, flags], capture_output=True, text=True)
        assert said in done.stderr and bool(said) == bool(done.returncode), done.stderr


def test_the_version_is_the_project_s():
    declared = re.search(r"project\(lockstep VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert lockstep.__version__ == declared


def test_a_wheel(tmp_path):
    """pip makes a wheel of the package, and a copy that is installed from it knows its version and finds its types."""
    try:  # in a process of its own: setuptools changes what this one has imported
        found = output("-c", "import setuptools, wheel, pip; print(setuptools.__version__)")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a package to make wheels with is missing: {error.stderr.splitlines()[-1]}")
    if int(found.split(".")[0]) < 61:
        pytest.skip(f"setuptools {found.strip()} is older than 61")
    import shutil
    source = tmp_path / "source"
    source.mkdir()
    shutil.copytree(ROOT / "python", source / "python", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    shutil.copy(ROOT / "CMakeLists.txt", source)
    made = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", tmp_path,
                           source / "python"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"lockstep_trainer-{lockstep.__version__}-py3-none-any.whl"
    import zipfile
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    for file in ("lockstep/py.typed", "lockstep/torch/__init__.py", "lockstep/__main__.py"):
        assert (tmp_path / "installed" / file).exists()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    said = subprocess.run([sys.executable, "-c", "import lockstep; print(lockstep.__version__, lockstep.__file__)"],
                          env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == lockstep.__version__ and said[1].startswith(str(tmp_path))


def test_setup_py_without_the_project_says_which_pip_there_has_to_be(tmp_path):
    import shutil
    shutil.copytree(ROOT / "python", tmp_path / "python", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    done = subprocess.run([sys.executable, "setup.py", "--version"], cwd=tmp_path / "python", capture_output=True, text=True)
    if "No module named 'setuptools'" in done.stderr:
        pytest.skip("setuptools is missing")
    assert done.returncode == 1 and "install it with pip 21.3 or later" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command, said", [
    (["package", "-o"], "^package: -o: expected a folder\nPacks the program"), (["package", "--of", ""], "^package: --of: expected a folder\n"),
    (["check_layering", "--help"], "^Checks the direction of dependencies"),
    (["reference", "--lockstep", "nowhere"], "^reference: nowhere is not there; build it")])
def test_tools_say_what_they_lack(command, said):
    done = subprocess.run([ROOT / "tools" / command[0], *command[1:]], capture_output=True, text=True)
    assert done.returncode in (1, 2) and re.match(said, done.stderr) and not done.stdout, done.stderr


def blocks(language):
    """The commands of the page, in its order."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs/do/python.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_s_commands(program, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    names = {}
    try:
        from lockstep import native  # noqa: F401
        lacking = ""
    except lockstep.MissingPackageError:
        lacking = "lockstep.native"
    for block in blocks("python"):
        if lacking and lacking in block:
            continue
        exec(compile(block, "docs/do/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "sync - local = " in said and "1, 2, 4 images per device: by image" in said and "torch.Size([64, 2, 30, 30])" in said
    assert float(re.search(r"tensor\(([0-9.e-]+)", said).group(1)) < 1e-5 and (tmp_path / "lens.html").exists()
    import torch
    if int(torch.__version__.split(".")[0]) < 2 and sys.version_info >= (3, 11):
        return  # torchrun of this PyTorch does not start with this Python
    (processes,) = [block for block in blocks("sh") if "ranks.py" in block]
    done = subprocess.run(["bash", "-c", processes.replace("python3", sys.executable)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
