#!/usr/bin/env python3
"""Deletes each barrier and fence of the kernels in turn and expects that the race detector, or a result, shows it.

    mutations.py PROGRAM FILTER [PLACE...]

PROGRAM is race_tests and FILTER selects its tests (as --gtest_filter does). Nothing is compiled again: the emulator leaves
out the call whose place is in the environment variable TUTTI_EMULATOR_WITHOUT. Each deletion is tried on the tests that
pass the place, the fastest first, until one fails. PLACE (kernels/cuda/reduce.cu:63) tries these deletions only. Prints
the score, and exits with 1 if a deletion is not found and not explained below, or if no test passes a place.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALL = re.compile(r"\b(__syncthreads|__syncwarp|__threadfence\w*)\(")
SECONDS = 300  # for one test

# Deletions that no test shows: (file, number of the call in the file) and the reason.
EXPLAINED = {
    ("kernels/cuda/batch_norm_reduction.h", 1):
        "it orders the header and its flag for the host, and the detector sees neither the host nor pinned memory",
}


def places():
    """All calls in the kernels: {place: (file, number in the file, name)}."""
    found = {}
    for folder in ("kernels/cuda", "core/cuda"):
        for path in sorted((ROOT / folder).glob("*")):
            number = 0
            if path.suffix not in (".cu", ".h"):
                continue
            for line, text in enumerate(path.read_text().splitlines(), 1):
                call = CALL.search(text.split("//")[0])
                if call:
                    number += 1
                    file = f"{folder}/{path.name}"
                    found[f"{file}:{line}"] = (file, number, call[1])
    return found


def run(program, test, **variables):
    """Runs one test. Returns how it failed, or nothing, and how many seconds it took."""
    begin = time.monotonic()
    try:
        done = subprocess.run([program, "--gtest_brief=1", "--gtest_filter=" + test], text=True, timeout=SECONDS,
                              capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1", **variables})
    except subprocess.TimeoutExpired:
        return "no end", time.monotonic() - begin
    seconds = time.monotonic() - begin
    if done.returncode in (0, 77):
        return "", seconds
    error = re.search(r"CUDA emulator: (a data race|[^\n]*)", done.stderr)
    return error[1] if error else "a wrong result", seconds


def tests_of(program, selected):
    listed = subprocess.run([program, "--gtest_list_tests", "--gtest_filter=" + selected], text=True,
                            capture_output=True, check=True).stdout
    tests, suite = [], ""
    for line in listed.splitlines():
        name = line.split("#")[0].strip()
        if line.startswith("  "):
            tests.append(suite + name)
        elif name.endswith("."):
            suite = name
    return tests


def covered_places(program, test):
    """The places that a test passes, and how long it takes. Ends the script if it fails as it is."""
    with tempfile.NamedTemporaryFile("r") as file:
        failure, seconds = run(program, test, TUTTI_EMULATOR_PLACES=file.name)
        if failure:
            sys.exit(f"mutations: {test} fails before anything is deleted: {failure}")
        known = {"/".join(line.strip().split("/")[-3:]) for line in file}
    return test, seconds, known


def find(program, place, tests):
    for test in tests:
        failure, _ = run(program, test, TUTTI_EMULATOR_WITHOUT=place)
        if failure:
            return place, test, failure
    return place, None, None


def main():
    program, selected, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    calls = {place: call for place, call in places().items() if not wanted or place in wanted}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(lambda test: covered_places(program, test), tests_of(program, selected)))
        runs.sort(key=lambda each: each[1])
        tests = {place: [test for test, _, known in runs if place in known] for place in calls}
        return report(calls, tests, len(runs), pool.map(lambda place: find(program, place, tests[place]), calls))


def report(calls, tests, runs, results):
    found = explained = 0
    bad = []
    for place, test, failure in results:
        file, number, name = calls[place]
        reason = EXPLAINED.get((file, number))
        if test:
            found += 1
            print(f"{place}: {name}: found by {test}: {failure}", flush=True)
            if reason:
                bad.append(f"{place} is explained in mutations.py, but {test} finds its deletion: remove the reason")
        elif reason:
            explained += 1
            print(f"{place}: {name}: not found: {reason}")
        else:
            what = "its deletion is not found" if tests[place] else "no test passes it"
            print(f"{place}: {name}: {what.upper()}", flush=True)
            bad.append(f"{place} ({name}, number {number} of the file): {what}; mend a test, delete the call, or explain it")
    print(f"mutations: {found} of {len(calls)} deletions found by {runs} tests, {explained} explained")
    if bad:
        return "mutations: " + "\nmutations: ".join(bad)


if __name__ == "__main__":
    sys.exit(main())
