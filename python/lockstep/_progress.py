"""How lines about a training are shown while it runs."""
import re
import sys
from html import escape
from typing import Any, Callable, Union

Progress = Union[bool, Callable[[str], None]]  # shown, not shown, or given to a function


def teller(progress: Progress) -> Callable[[str], None]:
    """What takes each line. A terminal gets it on stderr; a notebook, which shows that as an error, on stdout, and lines that
    count ("[3/8] ...") as one bar."""
    if callable(progress):
        return progress
    if not progress:
        return lambda line: None
    if "ipykernel" not in sys.modules:
        return lambda line: print(line, file=sys.stderr, flush=True)
    try:
        from IPython.display import HTML, display
    except ImportError:
        return lambda line: print(line, flush=True)
    bar: Any = None

    def tell(line: str) -> None:
        nonlocal bar
        counted = re.search(r"\[(\d+)/(\d+)\]", line)
        if not counted:
            print(line, flush=True)
            return
        shown: Any = HTML(  # type: ignore[no-untyped-call, unused-ignore]
            f'<progress value="{counted[1]}" max="{counted[2]}"></progress> {escape(line[counted.start():])}')
        if bar is None:
            bar = display(shown, display_id=True)  # type: ignore[no-untyped-call, unused-ignore]
        else:
            bar.update(shown)
    return tell
