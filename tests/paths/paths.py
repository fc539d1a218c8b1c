#!/usr/bin/env python3
"""Counts the files and lines that each path through tutti executes (tests/README.md): paths.py [--list]

Builds tutti without optimisation in build/paths, runs paths.cpp once for each path, and prints a table.
A header and its source count as one file. --list also prints the files, with the lines of each.
"""
import glob, json, os, pathlib, re, subprocess, sys, tempfile

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent
build = root / "build/paths"
program = str(build / "paths")
environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1")


def two_processes(path):
    """Only rank 0 writes its counters."""
    return ["mpirun", "-n", "1", program, path, ":", "-n", "1", "env", "GCOV_PREFIX=/dev/null", program, path]


def commands(folder):
    yield "`a + b`", [program, "add"]
    yield "convolution forward, in NoGrad", [program, "convolution"]
    yield "SGD step with momentum", [program, "sgd"]
    yield "SyncBatchNorm both ways, a sum of squares as the loss, 2 threads", [program, "sync_batch_norm_threads"]
    yield "the same, 2 processes", two_processes("sync_batch_norm")
    yield "Linear 512 x 512 both ways with its bucket of 1 MiB, 2 processes", two_processes("bucket")
    yield "a JPEG file to a normalised batch of one", [program, "jpeg", str(root / "tests/fixtures/images/large.jpg")]
    yield "train_resnet with one step of ResNet-20, its evaluation and its checkpoint", [program, "trainer", folder]


def executed_lines():
    """Returns the lines that were executed, by file of this repository. gcov prints them: files that it writes
    replace each other where sources have one name."""
    lines = {}
    reports = subprocess.run(["gcov", "-j", "-t", *glob.glob(f"{build}/**/*.gcda", recursive=True)],
                             capture_output=True, check=True).stdout
    for report in reports.splitlines():
        for file in json.loads(report)["files"]:
            path = (build / file["file"]).resolve()
            if not path.is_relative_to(root) or path.is_relative_to(build) or path.is_relative_to(here):
                continue
            counted = {line["line_number"] for line in file["lines"] if line["count"] > 0}
            if counted:
                lines.setdefault(str(path.relative_to(root)), set()).update(counted)
    return lines


def main():
    subprocess.run(["cmake", "-S", here, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=None"], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", build, "paths"], check=True, stdout=subprocess.DEVNULL)
    print("| path on the CPU | files | lines |\n| --- | --- | --- |")
    for name, command in commands(tempfile.mkdtemp()):
        for counters in glob.glob(f"{build}/**/*.gcda", recursive=True):
            os.remove(counters)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        lines = executed_lines()
        if not lines:
            sys.exit(f"{name}: no line was executed\n{done.stdout}{done.stderr}")
        stems = {}
        for path, counted in lines.items():
            stem = re.sub(r"\.(h|cpp)$", "", path)
            stems[stem] = stems.get(stem, 0) + len(counted)
        print(f"| {name} | {len(stems)} | {sum(stems.values()):,} |", flush=True)
        if "--list" in sys.argv:
            print(*(f"    {stem}: {count}" for stem, count in sorted(stems.items())), sep="\n")


if __name__ == "__main__":
    main()
