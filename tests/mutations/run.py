#!/usr/bin/env python3
"""Tries the changes of mutations.txt, and prints those that no test notices (tests/README.md).

    run.py apply [SUITE ...]    puts all of them, or those of suites, into the sources, each behind a number
    ninja -C build/dev kernels_tests nn_tests ...
    run.py test [-b build/dev] [NUMBER | SUITE ...]    runs the suites, with one change at a time
    run.py restore              takes them out again

A line of mutations.txt is `FILE :: OLD => NEW`; blanks stand for any white space, and OLD occurs
once in the file. A program with all of them behaves as if there were none, unless the variable
TUTTI_MUTATION has the number of one:
    an OLD that ends with `;` becomes      { if (mutated(n)) { NEW } else { OLD } }
    where NEW has an @, it becomes         NEW, with mutated(n) for the @
    any other OLD is an expression:        (mutated(n) ? (NEW) : (OLD))
`[SUITE FILTER]` names the tests of the lines below it.
"""
import os, pathlib, re, subprocess, sys

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent
HEADER = """#ifndef TUTTI_MUTATED
#define TUTTI_MUTATED
#include <cstdlib>
[[maybe_unused]] static inline bool mutated(int number) {
  static const int active = std::getenv("TUTTI_MUTATION") ? std::atoi(std::getenv("TUTTI_MUTATION")) : 0;
  return active == number;
}
#endif
"""


def read_mutations():
    result, suite, test_filter = [], "", ""
    for line in (here / "mutations.txt").read_text().splitlines():
        if line.startswith("["):
            suite, test_filter = line.strip("[]").split(" ", 1)
        elif " :: " in line:
            file, change = line.split(" :: ", 1)
            old, new = re.split(r" =>(?: |$)", change, maxsplit=1)
            result.append((len(result) + 1, file, old, new.strip(), suite, test_filter))
    return result


def files():
    return sorted({file for _, file, *_ in read_mutations()})


def git(*arguments):
    return subprocess.run(["git", "-C", root, *arguments, "--", *files()]).returncode


def apply(suites):
    if git("diff", "--quiet", "HEAD") != 0:
        sys.exit("a file to change has changes already; commit them, or run `run.py restore`")
    texts = {file: (root / file).read_text() for file in files()}
    for number, file, old, new, suite, _ in read_mutations():
        if suites and suite not in suites:
            continue
        pattern = r"\s+".join(re.escape(part) for part in old.split())
        places = list(re.finditer(pattern, texts[file]))
        if len(places) != 1:
            sys.exit(f"{number}: {file} has {len(places)} places with: {old}")
        before, active = places[0].group(), f"mutated({number})"
        if "@" in new:
            text = new.replace("@", active)
        elif old.endswith(";"):
            text = f"{{ if ({active}) {{ {new} }} else {{ {before} }} }}"
        else:
            text = f"({active} ? ({new}) : ({before}))"
        texts[file] = texts[file][: places[0].start()] + text + texts[file][places[0].end() :]
    for file, text in texts.items():
        if "mutated(" in text:
            (root / file).write_text(HEADER + text)


def run(build, suite, test_filter, number):
    """Returns the first test that fails; an empty text if none does."""
    environment = dict(os.environ, OMP_NUM_THREADS="2", TUTTI_MUTATION=str(number))
    program = next((build / "tests").rglob(f"{suite}_tests"))
    command = [program, f"--gtest_filter={test_filter}", "--gtest_fail_fast"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "a timeout"
    if done.returncode == 0:
        return ""
    failed = re.search(r"\[  FAILED  \] (\S+?),? ", done.stdout)
    running = re.findall(r"\[ RUN      \] (\S+)", done.stdout)
    return failed.group(1) if failed else f"a crash in {running[-1] if running else 'main()'}"


def test(arguments):
    build = root / "build/dev"
    if arguments[:1] == ["-b"]:
        build, arguments = pathlib.Path(arguments[1]).resolve(), arguments[2:]
    for number, file, old, new, suite, test_filter in read_mutations():
        if arguments and suite not in arguments and str(number) not in arguments:
            continue
        found = run(build, suite, test_filter, number)
        print(f"{number:3} {found or 'NOT NOTICED'}: {file}: {old} => {new}", flush=True)


if __name__ == "__main__":
    action = sys.argv[1] if len(sys.argv) > 1 else ""
    if action == "apply":
        apply(sys.argv[2:])
    elif action == "restore":
        sys.exit(git("checkout", "HEAD"))
    elif action == "test":
        test(sys.argv[2:])
    else:
        sys.exit(__doc__)
