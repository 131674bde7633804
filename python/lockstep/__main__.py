"""`python -m lockstep`: the program."""
from ._program import main

main()
