"""Every error of the package travels to another process as it was."""
import pickle

import pytest

import lockstep
from lockstep import errors


def kinds(base):
    return [base, *(kind for each in base.__subclasses__() for kind in kinds(each))]


def made(kind):
    if issubclass(kind, errors.ProgramError):
        error = kind("what was said", 3, ["lockstep", "train"])
        error.output = "{}"
        return error
    return kind("what was said", 3) if kind.__name__ == "GroupError" else kind("what was said")


def test_errors_travel():
    try:
        import lockstep.torch  # noqa: F401
    except lockstep.MissingPackageError:
        pass
    for kind in kinds(lockstep.LockstepError):
        error = made(kind)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            back = pickle.loads(pickle.dumps(error, protocol))
            assert type(back) is kind and str(back) == str(error) and vars(back) == vars(error)


@pytest.mark.parametrize("said, words", [
    ("runs/a already holds a run: continue it with --resume, or choose another folder with -o",
     "runs/a already holds a run: continue it with resume=True, or choose another folder with output="),
    ("evaluate with -s bn.eval_stats=own, or -s run.seed=3.",
     'evaluate with settings={"bn.eval_stats": "own"}, or settings={"run.seed": 3}.'),
    ("-s optim.lr=nan: error: a number", 'settings={"optim.lr": float("nan")}: error: a number'),
    ('-s data.size=[3, 4, "x"]: error', 'settings={"data.size": [3, 4, "x"]}: error'), ("-s a.b=true", 'settings={"a.b": True}'),
    ('-s run.name="a; b": error', 'settings={"run.name": "a; b"}: error'),
    ("--modes: an empty word; is a variable of the shell not set?", "modes: an empty word"),
    ("--modes names l twice; -d cpu:2", "modes names l twice; devices= cpu:2"), ("a-s b --stepsize", "a-s b --stepsize"),
    ("--steps and --count", "steps and images")])
def test_options_are_said_as_arguments(said, words):
    from lockstep._program import _in_python
    assert _in_python(said) == words
