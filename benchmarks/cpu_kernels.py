#!/usr/bin/env python3
"""Compares the CPU kernels of a build with -march=native with those of one that chooses at run time.

  benchmarks/cpu_kernels.py NATIVE GENERIC [ROUNDS] [LEVEL...]

NATIVE and GENERIC are the programs cpu_kernels of two builds, with -DTUTTI_NATIVE=ON and OFF. They take turns for
ROUNDS rounds, GENERIC once for each of the LEVELs (default: avx512_bf16), and the fastest time of each kernel counts.
The table has NATIVE's microseconds and the time at each level over it.
"""
import os
import subprocess
import sys


def times(program, level):
    environment = dict(os.environ)
    environment.pop("TUTTI_MAX_CPU", None)
    if level:
        environment["TUTTI_MAX_CPU"] = level
    output = subprocess.run([program, "0.01"], env=environment, check=True, capture_output=True, text=True).stdout
    return {line[:-10].strip(): float(line[-10:]) for line in output.splitlines()}


def main():
    native, generic = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    levels = sys.argv[4:] or ["avx512_bf16"]
    contenders = [(native, None)] + [(generic, level) for level in levels]
    best = [{} for _ in contenders]
    for _ in range(rounds):
        for fastest, (program, level) in zip(best, contenders):
            for name, time in times(program, level).items():
                fastest[name] = min(time, fastest.get(name, time))
    print(f"| kernel | native, us | {' | '.join(levels)} |")
    print("| --- |" + " --- |" * len(contenders))
    for name, time in best[0].items():
        print(f"| {name} | {time:.2f} | {' | '.join(f'{other[name] / time:.2f}' for other in best[1:])} |")


if __name__ == "__main__":
    main()
