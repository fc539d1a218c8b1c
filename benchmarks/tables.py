#!/usr/bin/env python3
"""Copies the tables of benchmarks/results/ into benchmarks/results/layer.md, between its <!-- name --> and <!-- end --> marks."""
import pathlib
import re

root = pathlib.Path(__file__).resolve().parent.parent
results = root / 'benchmarks' / 'results'
HEAVY = 12  # MiB: tensors from this size on count as larger than the cache


def rows_of(name):
    path = results / name
    lines = path.read_text().splitlines() if path.exists() else []
    table = [[c.strip() for c in line.strip('|').split('|')] for line in lines if line.startswith('|')]
    return table[:1], table[2:]


def markdown(head, rows):
    return '\n'.join('| ' + ' | '.join(r) + ' |' for r in head + [['---'] * len(head[0])] + rows)


def layer(threads):
    head, rows = rows_of(f'sync_batch_norm_{threads}.txt')
    if not rows:
        return 'Not measured yet: it needs a machine with nothing else to do (`benchmarks/run.sh`).', ''
    text = []
    for mode, title in (('plain', 'Plain'), ('add, ReLU', 'Add and ReLU fused')):
        chosen = [r[:4] + r[6:] for r in rows if r[4] == mode]
        text.append(f'{title}, threads: {threads}\n\n' + markdown([head[0][:4] + head[0][6:]], chosen))
    passes = [(r, side) for r in rows for side in (0, 1)]
    short = []
    for peer, column in (('oneDNN', 12), ('PyTorch', 14)):
        ratios = sorted(float(r[column + side]) for r, side in passes)
        slower = [f"{r[0]}x{r[1]} {r[2]} {r[3]} {r[4]} {('forward', 'backward')[side]} ({r[column + side]})"
                  for r, side in passes if float(r[column + side]) < 1]
        short.append(f'- {threads} thread(s): slower than {peer} in {len(slower)} of {len(passes)} passes'
                     + (' (' + '; '.join(slower) + ')' if slower else '')
                     + f', median ratio {ratios[len(ratios) // 2]:.2f}, lowest {ratios[0]:.2f}.')
    for dtype in ('float32', 'bfloat16'):
        shares = sorted(float(r[10 + side]) for r, side in passes if float(r[6]) >= HEAVY and r[2] == dtype)
        short.append(f'- {threads} thread(s), {dtype}: of {len(shares)} passes over tensors of {HEAVY} MiB and more '
                     f'{sum(s >= 80 for s in shares)} reach 80% of the copy bandwidth; median {shares[len(shares) // 2]:.0f}%, '
                     f'lowest {shares[0]:.0f}%.')
    return '\n\n'.join(text), '\n'.join(short)


one, two = layer(1), layer(2)
mpi = (results / 'sync_batch_norm_mpi.txt').read_text().strip()
parts = {
    'machine': '```\n' + (results / 'machine.txt').read_text().strip() + '\n```',
    'short': '\n'.join(s for s in (one[1], two[1]) if s),
    'one': one[0],
    'two': two[0],
    'mpi': re.sub(r'(\d+ ranks.*)\n', r'\n\1\n\n', mpi).strip(),
    'step': (results / 'resnet20_step.txt').read_text().strip(),
}
page = results / 'layer.md'
text = page.read_text()
for name, part in parts.items():
    text = re.sub(rf'<!-- {name} -->\n.*?<!-- end -->', lambda _: f'<!-- {name} -->\n{part}\n<!-- end -->', text, flags=re.S)
page.write_text(text)
