#!/usr/bin/env python3
"""Draws docs/images/step_memory.svg, the memory of tensors over a training step of ResNet-50 with and without
recompute_output, from benchmarks/results/step_memory.txt. With a program it measures that file first:

    benchmarks/step_memory.py [build/release/benchmarks/step_memory]
"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks/results/step_memory.txt"
PARTS = 100  # of a step; of each the file has the most memory
RUNS = [("without the option", "#c2410c", []), ("with recompute_output", "#1d4ed8", ["recompute-output"])]
LEFT, TOP, WIDTH, HEIGHT = 60, 20, 620, 260


def measure(program):
    """Returns a line for each run: where the backward begins, as a percentage of the step, and the MiB of the parts."""
    lines = []
    for _, _, options in RUNS:
        output = subprocess.run([program, "resnet50", "16", "224", *options], check=True, capture_output=True, text=True)
        samples, begin = [], 0.0
        for line in output.stdout.splitlines():
            if line == "backward":
                begin = samples[-1][0]
            else:
                samples.append(tuple(map(float, line.split())))
        end = samples[-1][0] + 1e-9
        parts = [[mib for ms, mib in samples if int(PARTS * ms / end) == part] for part in range(PARTS)]
        lines.append(" ".join(f"{number:.0f}" for number in [100 * begin / end, *(max(p) for p in parts if p)]))
    RESULT.write_text("\n".join(lines) + "\n")


def draw():
    runs = [list(map(float, line.split())) for line in RESULT.read_text().splitlines()]
    most = 1600

    def at(share, mib):
        return f"{LEFT + WIDTH * share:.1f},{TOP + HEIGHT * (1 - mib / most):.1f}"

    def text(x, y, words, more=""):
        return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>'

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {TOP + HEIGHT + 40}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    for mib in range(0, most + 1, 400):
        y = TOP + HEIGHT * (1 - mib / most)
        svg += [f'<path d="M{LEFT},{y:.1f}h{WIDTH}" stroke="#ddd"/>', text(LEFT - 6, y + 4, mib, 'text-anchor="end"')]
    svg += [text(6, 14, "MiB of tensors"), text(LEFT + WIDTH, TOP + HEIGHT + 30, "share of the step", 'text-anchor="end"')]
    svg += [text(LEFT + WIDTH * share / 100, TOP + HEIGHT + 16, f"{share}%", 'text-anchor="middle"')
            for share in range(0, 101, 25)]
    for i, ((name, color, _), (begin, *parts)) in enumerate(zip(RUNS, runs)):
        points = " ".join(at((part + 0.5) / len(parts), mib) for part, mib in enumerate(parts))
        svg += [f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>',
                f'<path d="M{at(begin / 100, 0)}V{TOP}" stroke="{color}" stroke-dasharray="3 3"/>',
                text(LEFT + 0.55 * WIDTH, TOP + 16 * (i + 1), f"{name}, at most {max(parts):.0f} MiB", f'fill="{color}"')]
    (ROOT / "docs/images/step_memory.svg").write_text("\n".join([*svg, "</svg>", ""]))


if __name__ == "__main__":
    for program in sys.argv[1:]:
        measure(program)
    draw()
