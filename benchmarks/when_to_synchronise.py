#!/usr/bin/env python3
"""Draws docs/images/when_to_synchronise.svg and prints the tables of docs/when_to_synchronise.md from
benchmarks/results/when_to_synchronise.txt. With a program, a folder of scenes and one of Fashion-MNIST it first makes
the runs that the file does not have, two at a time, and adds a line for each:

    build/release/examples/make_scenes runs/scenes48 --train 1200 --val 300 --size 48
    benchmarks/when_to_synchronise.py build/release/benchmarks/when_to_synchronise runs/scenes48 \\
        /usr/share/datasets/fashion-mnist
"""
import concurrent.futures
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks/results/when_to_synchronise.txt"
TASKS, SEEDS, RANKS = ["segmentation", "classification"], [1, 2, 3], [1, 2, 4, 8, 16]
# Local statistics of n ranks; synchronised ones of any number are those of one rank, and those of pairs are the local
# ones of half the ranks. The first seed checks both.
RUNS = [*((ranks, "local") for ranks in RANKS), (1, "group_norm")]
CHECKS = [(4, "sync"), (16, "pairs")]


def measure(program, *folders):
    lines = RESULT.read_text().splitlines() if RESULT.exists() else []
    done = {tuple(line.split()[:4]) for line in lines}
    plan = [(task, str(ranks), mode, str(seed)) for seed in SEEDS for ranks, mode in RUNS for task in TASKS]
    plan += [(task, str(ranks), mode, "1") for ranks, mode in CHECKS for task in TASKS]

    def make(run):
        task, ranks, mode, seed = run
        command = [program, task, folders[TASKS.index(task)], ranks, mode, seed]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        with RESULT.open("a") as file:
            file.write(line)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(make, (run for run in plan if run not in done)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(*sys.argv[1:])
