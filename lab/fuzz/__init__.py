"""Coverage-guided fuzzing: inputs that reach new code are kept and changed further, until one breaks a promise.

    python -m lab.fuzz [TARGET …] [--seconds 60]

A target (`lab.fuzz.targets`) is a module with a function `check(data)`, which does something with any bytes and raises
if a promise is broken, and a function `seeds()`. atheris (libFuzzer for Python) changes inputs and watches which code
they reach, in a process of its own (`child`); `mutation` helps it where an input is a chain of frames. What breaks a
promise is written down once per place in the code (`findings`), and the search goes on.

`tests/fuzz/corpus` keeps, for each target, the fewest inputs that reach all the code reached so far (`corpus`), and the
input of every finding. The fast tests replay them; that needs no atheris.
"""
