#!/usr/bin/env python3
"""Draws docs/images/when_to_synchronise.svg and writes the table of benchmarks/results/when_to_synchronise.md from
benchmarks/results/when_to_synchronise.txt. With a program, a folder of scenes and one of Fashion-MNIST it first makes
the runs that the file does not have, two at a time, and adds a line for each:

    build/release/examples/make_scenes runs/scenes48 --train 1200 --val 300 --size 48
    benchmarks/when_to_synchronise.py build/release/benchmarks/when_to_synchronise runs/scenes48 \\
        /usr/share/datasets/fashion-mnist
"""
import concurrent.futures
import math
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
LEFT, TOP, WIDTH, HEIGHT, GAP = 50, 40, 330, 260, 70
CURVES = [("synchronised over all ranks", "#1d4ed8"), ("synchronised over pairs of ranks", "#0891b2"),
          ("local, statistics of rank 0", "#c2410c"), ("local, recomputed statistics", "#d97706"),
          ("GroupNorm", "#6b7280")]


def measure(program, *folders):
    lines = RESULT.read_text().splitlines() if RESULT.exists() else []
    done = {tuple(line.split()[:4]) for line in lines}
    plan = [(task, str(ranks), mode, str(seed)) for seed in SEEDS
            for ranks, mode in RUNS + (CHECKS if seed == SEEDS[0] else []) for task in TASKS]

    def make(run):
        task, ranks, mode, seed = run
        command = [program, task, folders[TASKS.index(task)], ranks, mode, seed]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        with RESULT.open("a") as file:
            file.write(line)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(make, (run for run in plan if run not in done)))


def curves(runs, task):
    """Returns, for each curve, the scores of all seeds at each number of ranks."""
    def scores(ranks, mode, which):
        return [scores[which] for key, (scores, _) in runs.items() if key[:3] == (task, str(ranks), mode)]

    return [[scores(1, "local", 0) for _ in RANKS], [scores(max(n // 2, 1), "local", 0) for n in RANKS],
            [scores(n, "local", 0) for n in RANKS], [scores(n, "local", 2) for n in RANKS],
            [scores(1, "group_norm", 0) for _ in RANKS], [scores(n, "local", 1) for n in RANKS]]


def panel(task, left, of_task):
    values = [score for curve in of_task[:5] for scores in curve for score in scores]
    step = 0.02 if max(values) - min(values) < 0.15 else 0.05
    low, high = (min(values) // step) * step, (max(values) // step + 1) * step

    def text(x, y, words, more=""):
        return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>'

    def y_of(score):
        return TOP + HEIGHT * (high - score) / (high - low)

    svg = [text(left, TOP - 14, {"segmentation": "segmentation: mean IoU", "classification":
                                 "classification: test accuracy"}[task], 'font-weight="bold"'),
           text(left + WIDTH / 2, TOP + HEIGHT + 34, "images on each rank", 'text-anchor="middle"')]
    for i in range(round((high - low) / step) + 1):
        y = y_of(low + i * step)
        svg += [f'<path d="M{left},{y:.1f}h{WIDTH}" stroke="#ddd"/>',
                text(left - 6, y + 4, f"{low + i * step:.2f}", 'text-anchor="end"')]
    for i, ranks in enumerate(RANKS):
        svg.append(text(left + 20 + 72 * i, TOP + HEIGHT + 16, 16 // ranks, 'text-anchor="middle"'))
    for c, ((_, color), curve) in enumerate(zip(CURVES, of_task)):
        xs = [left + 12 + 72 * i + 4 * c for i in range(len(RANKS))]
        points = [(x, scores) for x, scores in zip(xs, curve) if scores]
        line = " ".join(f"{x},{y_of(sum(scores) / len(scores)):.1f}" for x, scores in points)
        svg.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        svg += [f'<path d="M{x},{y_of(min(scores)):.1f}V{y_of(max(scores)):.1f}" stroke="{color}"/>'
                f'<circle cx="{x}" cy="{y_of(sum(scores) / len(scores)):.1f}" r="3" fill="{color}"/>'
                for x, scores in points]
    return svg


def draw():
    runs = {}
    for line in RESULT.read_text().splitlines():
        if not line.startswith("#"):
            task, ranks, mode, seed, *numbers = line.split()
            runs[task, ranks, mode, seed] = (list(map(float, numbers[:3])), list(map(float, numbers[3:7])))
    width = 2 * LEFT + 2 * WIDTH + GAP
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 80}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    table = []
    for t, task in enumerate(TASKS):
        of_task = curves(runs, task)
        svg += panel(task, LEFT + t * (WIDTH + GAP), of_task)
        table += [f"| {task} | " + " | ".join(str(16 // ranks) for ranks in RANKS) + " | GroupNorm |", "|" + " --- |" * 7]
        for name, curve in [("statistics of rank 0", of_task[2] + of_task[4][:1]), ("pooled", of_task[5]),
                            ("recomputed", of_task[3])]:
            cells = [f"{sum(s) / len(s):.3f} ({min(s):.3f} to {max(s):.3f})" if s else "" for s in curve]
            table.append(f"| {name} | " + " | ".join((cells + [""])[:6]) + " |")
        table += ["", "Seeds, from left to right: " + ", ".join(str(len(s)) for s in of_task[2] + of_task[4][:1]) + ".", ""]
    for i, (name, color) in enumerate(CURVES):
        x, y = LEFT + 250 * (i % 3), TOP + HEIGHT + 56 + 18 * (i // 3)
        svg.append(f'<path d="M{x},{y - 4}h20" stroke="{color}" stroke-width="3"/><text x="{x + 26}" y="{y}">{name}</text>')
    page = ROOT / "benchmarks/results/when_to_synchronise.md"
    before, rest = page.read_text().split("<!-- runs -->\n")
    page.write_text(before + "<!-- runs -->\n" + "\n".join(table) + "<!-- end -->" + rest.split("<!-- end -->")[1])
    (ROOT / "docs/images/when_to_synchronise.svg").write_text("\n".join([*svg, "</svg>", ""]))


def costs():
    """Prints what the statistics of fcn_resnet50 cost in a step, in ms, by the model of benchmarks/results/scaling.md."""
    channels = [64, 512]  # the stem and the head
    for width, blocks in [(64, 3), (128, 4), (256, 6), (512, 3)]:
        channels += blocks * [width, width, 4 * width] + [4 * width]
    print(f"\n{len(channels)} layers, {8 * sum(2 * c + 8 for c in channels)} bytes in forward and in backward each")

    def small(hosts, each, a, c, m):
        return 4.4 + 2 * (each - 1) * a + 2 * math.log2(hosts) * (c + 8e-5 * m)  # us; 100 Gbit/s

    for ranks in [8, 16, 32, 64, 128, 256, 512, 1024]:
        totals = []
        for each in [8, 1]:
            hosts = ranks // each
            a = 0.52 * (1.8 if hosts > 1 else 1)
            totals.append(sum(2 * small(hosts, each, a, 5.0, 8 * (2 * c + 8)) for c in channels) / 1000)
        print(f"| {ranks:,} | {totals[0]:.2f} | {totals[1]:.2f} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(*sys.argv[1:])
    draw()
    costs()
