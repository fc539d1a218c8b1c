#!/usr/bin/env python3
"""Measures tutti against PyTorch and cuDNN on a GPU, both in this process, in turns: A B A B ..., the median of the ratios.

    python3 benchmarks/gpu/run.py --library build/.../libgpu_benchmark.so --out FOLDER [--seconds N] [--device cuda] [--quick]

Inputs are random, in rotating sets that are together several times the L2 cache. Clocks are recorded before and after.
Writes gpu.json (every sample) and gpu.md (the tables) into FOLDER, anew after each line, so that a run that is stopped
leaves what it has; what would begin after N seconds is left out and said to be. What PyTorch compiles for minutes comes
last. With --device cpu --quick it only tries itself out.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

# (channels, height and width) of the normalisation layers of ResNet-50 at 224x224.
SHAPES = [(64, 112), (64, 56), (256, 56), (128, 56), (128, 28), (512, 28), (256, 28), (256, 14), (1024, 14), (512, 14),
          (512, 7), (2048, 7)]


class Tutti:
    """Jobs of the shared library."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.tutti_last_error.restype = ctypes.c_char_p
        self.lib.tutti_time.restype = ctypes.c_double
        for name in ('tutti_batch_norm', 'tutti_training', 'tutti_copy'):
            getattr(self.lib, name).restype = ctypes.c_void_p

    def configure(self, settings):
        self.lib.tutti_configure(ctypes.c_int(settings['allow_tf32']), ctypes.c_int(settings['autotune']))

    def job(self, name, *arguments):
        as_c = [a.encode() if isinstance(a, str) else ctypes.c_int64(a) if isinstance(a, int) and not isinstance(a, bool)
                else ctypes.c_int(a) for a in arguments]
        handle = getattr(self.lib, name)(*as_c)
        if not handle:
            raise RuntimeError(self.lib.tutti_last_error().decode())
        return TuttiJob(self.lib, handle)


class TuttiJob:
    def __init__(self, lib, handle):
        self.lib, self.handle = lib, ctypes.c_void_p(handle)

    def time(self, count):
        ms = self.lib.tutti_time(self.handle, ctypes.c_int64(count))
        if ms < 0:
            raise RuntimeError(self.lib.tutti_last_error().decode())
        return ms

    def close(self):
        self.lib.tutti_delete(self.handle)


class TorchJob:
    def __init__(self, once, device):
        self.once, self.device, self.i = once, device, 0

    def time(self, count):
        if self.device == 'cpu':
            begin = time.perf_counter()
            self.repeat(count)
            return (time.perf_counter() - begin) * 1e3
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.repeat(count)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def repeat(self, count):
        for _ in range(count):
            self.once(self.i)
            self.i += 1

    def close(self):
        pass


def interleave(ours, theirs, rounds, target_ms):
    """Milliseconds per repetition of both and the ratio theirs / ours, medians over rounds in which both ran."""
    counts = []
    for job in (ours, theirs):
        job.time(3)
        counts.append(max(1, int(target_ms / max(job.time(3) / 3, 1e-3))))
    samples = []
    for r in range(rounds):
        pair = [None, None]
        for k in ((0, 1), (1, 0))[r % 2]:  # neither always comes first
            pair[k] = (ours, theirs)[k].time(counts[k]) / counts[k]
        samples.append(pair)
    return {'ours_ms': statistics.median(a for a, _ in samples), 'theirs_ms': statistics.median(b for _, b in samples),
            'ratio': statistics.median(b / a for a, b in samples), 'samples': samples}


def clocks():
    try:
        return subprocess.run(['nvidia-smi', '--query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw', '--format=csv,noheader'],
                              capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return 'unknown'


def synchronised_batch_norm(x, weight, bias, mean, var):
    return torch.nn.modules._functions.SyncBatchNorm.apply(x, weight, bias, mean, var, 1e-5, 0.1,
                                                           torch.distributed.group.WORLD, 1)


class LoneSyncBatchNorm(torch.nn.SyncBatchNorm):
    """PyTorch's own layer is a local batch norm in a group of one rank. This one issues its collectives, as tutti's does."""

    def forward(self, x):
        self.num_batches_tracked.add_(1)
        return synchronised_batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var)


def normalisation_peer(kind, shape, dtype, sets, device):
    """kind: sync (PyTorch's SyncBatchNorm function), eager, compile, cudnn; all but sync with residual add and ReLU."""
    n, c, h = shape
    make = lambda: torch.randn(n, c, h, h, device=device).to(dtype).to(memory_format=torch.channels_last)
    xs, rs, dys = [[make() for _ in range(sets)] for _ in range(3)]
    for t in xs + rs:
        t.requires_grad_()
    weight, bias = torch.ones(c, device=device, requires_grad=True), torch.zeros(c, device=device, requires_grad=True)
    mean, var = torch.zeros(c, device=device), torch.ones(c, device=device)
    if kind == 'sync':
        forward = lambda x, r: synchronised_batch_norm(x, weight, bias, mean, var)
    elif kind == 'cudnn':
        def forward(x, r):
            y = torch.ops.aten.cudnn_batch_norm(x, weight, bias, mean, var, True, 0.1, 1e-5)[0]
            return F.relu(y + r, inplace=True)
    else:
        forward = lambda x, r: F.relu(F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5) + r)
        if kind == 'compile':
            torch._dynamo.reset()  # it compiles a function for a few shapes only, and then quietly runs it as it is
            forward = torch.compile(forward, dynamic=False)

    def once(i):
        k = i % sets
        forward(xs[k], rs[k]).backward(dys[k])
        xs[k].grad = rs[k].grad = weight.grad = bias.grad = None

    return TorchJob(once, device)


def training_peer(kind, batch, size, device):
    """kind: sync (SyncBatchNorm, eager), graph (eager under a CUDA graph), compile (max-autotune)."""
    import torchvision
    net = torchvision.models.resnet50().to(device).to(memory_format=torch.channels_last)
    if kind == 'sync':
        net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
        for module in net.modules():
            if isinstance(module, torch.nn.SyncBatchNorm):
                module.__class__ = LoneSyncBatchNorm
    if kind == 'compile':
        torch._dynamo.reset()
    model = torch.compile(net, mode='max-autotune', dynamic=False) if kind == 'compile' else net
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4,
                          **({'fused': True} if device == 'cuda' else {}))
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device=device)

    def step(_=0):
        sgd.zero_grad(set_to_none=kind != 'graph')
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        sgd.step()

    if kind == 'graph':
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(4):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return TorchJob(lambda _: graph.replay(), device)
    return TorchJob(step, device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--library', required=True)
    parser.add_argument('--out', required=True, type=pathlib.Path)
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--seconds', type=float, default=float('inf'), help='begin nothing after so long')
    parser.add_argument('--allow-tf32', action='store_true', help='for both: float32 products and convolutions may use TF32')
    parser.add_argument('--no-autotune', dest='autotune', action='store_false', help="for both: cuDNN's heuristics choose")
    parser.add_argument('--quick', action='store_true', help='tiny sizes, to see that everything runs')
    o = parser.parse_args()
    end = time.monotonic() + o.seconds
    cuda = o.device == 'cuda'
    settings = {'allow_tf32': o.allow_tf32, 'autotune': o.autotune}
    if cuda:
        torch.backends.cudnn.benchmark = o.autotune
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = o.allow_tf32
        torch.distributed.init_process_group('nccl', rank=0, world_size=1, store=torch.distributed.HashStore())
    tutti = Tutti(o.library)
    tutti.configure(settings)
    rounds, target = (2, 1) if o.quick else (9, 25)
    batch = 2 if o.quick else 64
    results, failed, not_begun = [], [], []
    start = clocks()

    def write(last=False):
        o.out.mkdir(parents=True, exist_ok=True)
        machine = {'device': torch.cuda.get_device_name() if cuda else 'cpu', 'torch': torch.__version__,
                   'cuda': torch.version.cuda, 'cudnn': torch.backends.cudnn.version() if cuda else None,
                   'settings of both': settings, 'clocks_before': start, 'clocks_after': clocks() if last else None,
                   'note': 'one rank: both issue the collectives of SyncBatchNorm, with which NCCL has nothing to do, and '
                           'neither has DataParallel, which fills buckets in PyTorch and returns early in tutti'}
        (o.out / 'gpu.json').write_text(json.dumps({'machine': machine, 'results': results, 'failed': failed,
                                                    'not begun, no time left': not_begun}, indent=1))
        lines = [f'{k}: {v}' for k, v in machine.items()] + ['', '| what | shape | peer | ours ms | peer ms | peer / ours | ours GB/s or images/s |',
                                                              '| --- | --- | --- | --- | --- | --- | --- |']
        for r in results:
            rate = r['bytes'] / r['ours_ms'] / 1e6 if 'bytes' in r else r['images'] / r['ours_ms'] * 1e3
            lines.append(f"| {r['what']} | {r['shape']} | {r['peer']} | {r['ours_ms']:.4f} | {r['theirs_ms']:.4f} | {r['ratio']:.2f} | {rate:.0f} |")
        groups = {}
        for r in results:
            groups.setdefault((r['what'], r['peer']), []).append(r['ratio'])
        lines += ['', '| what | peer | geometric mean | worst |', '| --- | --- | --- | --- |']
        lines += [f'| {w} | {p} | {statistics.geometric_mean(v):.2f} | {min(v):.2f} |' for (w, p), v in groups.items()]
        lines += [''] + [f'FAILED {f}' for f in failed] + [f'not begun, no time left: {n}' for n in not_begun]
        text = '\n'.join(lines) + '\n'
        (o.out / 'gpu.md').write_text(text)
        return text

    def compare(what, peer, shape, make_ours, make_theirs, **extra):
        if time.monotonic() > end:
            not_begun.append(f'{what} {shape} {peer}')
            return
        ours = None
        try:
            ours, theirs = make_ours(), make_theirs()
            row = {'what': what, 'peer': peer, 'shape': shape, **extra, **interleave(ours, theirs, rounds, target)}
            results.append(row)
            print(f"{what:28} {str(shape):22} {peer:22} ours {row['ours_ms']:9.4f} ms  theirs {row['theirs_ms']:9.4f} ms  "
                  f"ratio {row['ratio']:5.2f}", flush=True)
        except Exception as e:  # one peer that cannot run must not cost the rest of the lease
            failed.append(f'{what} {shape} {peer}: {type(e).__name__}: {e}')
            print('FAILED', failed[-1], flush=True)
        finally:
            if ours:
                ours.close()
        write()
        if cuda:
            torch.cuda.empty_cache()

    # ---- the copy that the machine can do, for the streaming kernels
    size = (1 << 20) if o.quick else (1 << 30)
    buffers = [torch.empty(size, dtype=torch.uint8, device=o.device) for _ in range(2)]
    compare('copy', 'torch copy', size, lambda: tutti.job('tutti_copy', o.device, size),
            lambda: TorchJob(lambda _: buffers[1].copy_(buffers[0]), o.device), bytes=2 * size)

    # ---- normalisation, bfloat16, channels_last. Bytes that must move: x and y forward, read twice; x and dy backward, read
    # twice, dx; and the residual with it.
    def normalise(peer, c, h):
        shape = (batch, c, h)
        each = batch * c * h * h * 2
        sets = 1 if o.quick else max(2, min(64, -(-400_000_000 // (3 * each))))  # together far beyond the L2
        alone = peer != 'sync'
        compare('batch norm, add, ReLU' if alone else 'sync batch norm', peer, shape,
                lambda: tutti.job('tutti_batch_norm', o.device, batch, c, h, h, 'bfloat16', True, alone, sets, not alone),
                lambda: normalisation_peer(peer, shape, torch.bfloat16, sets, o.device), bytes=(12 if alone else 8) * each)

    def train(peer, size):
        pixels = 32 if o.quick else 224
        compare('ResNet-50 step', peer, (size, 3, pixels, pixels),
                lambda: tutti.job('tutti_training', o.device, 'resnet50', size, pixels, 'bfloat16', peer in ('graph', 'compile'),
                                  peer == 'sync'),
                lambda: training_peer(peer, size, pixels, o.device), images=size)

    shapes, batches = (SHAPES[:2], [2]) if o.quick else (SHAPES, [256, 64])
    for peer in ('sync', 'graph') if cuda else ('eager',):
        for size in batches:
            train(peer, size)
    for peer in ('sync', 'eager', 'cudnn') if cuda else ('eager',):
        for c, h in shapes:
            normalise(peer, c, h)
    for c, h in [] if o.quick else [(64, 112), (256, 56)]:  # streaming: 200 MB and more
        shape = (256, c, h)
        each = 256 * c * h * h * 2
        compare('batch norm, large', 'eager', shape,
                lambda: tutti.job('tutti_batch_norm', o.device, 256, c, h, h, 'bfloat16', True, False, 2, False),
                lambda: normalisation_peer('eager', shape, torch.bfloat16, 2, o.device), bytes=8 * each)
    if cuda:
        for c, h in shapes:
            normalise('compile', c, h)
        for size in batches:
            train('compile', size)

    print(write(last=True))
    return 1 if failed else 0


if __name__ == '__main__':
    raise SystemExit(main())
