#!/usr/bin/env python3
"""Compares tutti with PyTorch on the CPU, workload by workload, and writes a Markdown report. benchmarks/compare.sh
sets everything up and calls it:

    compare.py --build FOLDER --libtorch PROGRAM --jemalloc LIBRARY --out FILE [--rounds 7] [--only TEXT] [--peers ...]
               [--memory]

Every contender of a workload is a process of its own, so that no library meets another one's. Their outputs (losses of
the first steps, or logits) must agree before anything is timed. Then they take turns: in each round each measures some
iterations. A figure is the median over rounds of the medians of a round; the spread is that of the rounds. --memory
makes only the table of the peak memory of steps.
"""
import argparse
import datetime
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
# What PyTorch's documentation recommends.
MALLOC_CONF = ("oversize_threshold:1,background_thread:true,metadata_thp:auto,"
               "dirty_decay_ms:9000000000,muzzy_decay_ms:9000000000")

OF_INFERENCE = ["compile, frozen", "ONNX Runtime", "OpenVINO"]  # peers that cannot train


@dataclass
class Workload:
    name: str
    kind: str  # train, infer, ranks, mlp, overhead or operation
    model: str
    batch: int = 0
    side: int = 0
    option: str = "float32"
    iterations: int = 3  # in a round
    tolerance: float = 2e-3  # of logits and of the first loss, which follows from the same weights on both sides
    drift: float = 2e-3  # of the losses after it


# Batch normalisation of a few images amplifies rounding from step to step. With ResNet-50 and these weights PyTorch's
# own losses in float32 and in float64 agree in the first step to 1e-6, differ in the second by 0.15% and in the third
# by 0.3%; so do those in float32 when the images change by a millionth.
WORKLOADS = [
    Workload("ResNet-50 step, batch 16, float32", "train", "resnet50", batch=16, side=224, iterations=1,
             drift=1e-2),
    Workload("ResNet-50 step, batch 16, bfloat16", "train", "resnet50", batch=16, side=224, option="bfloat16",
             iterations=1, tolerance=5e-2, drift=5e-2),
    Workload("ResNet-20 step, batch 128, float32", "train", "resnet20", batch=128, side=32, iterations=4),
    Workload("ResNet-20 step, batch 128, bfloat16", "train", "resnet20", batch=128, side=32, option="bfloat16",
             iterations=4, tolerance=5e-2, drift=5e-2),
    Workload("ResNet-18 step, batch 16, float32", "train", "resnet18", batch=16, side=224, iterations=2),
    *[Workload(f"{title} inference, batch {batch}, {option}", "infer", title.lower().replace("-", ""), batch=batch,
               side=224, option=option, iterations=iterations, tolerance=5e-2 if option == "bfloat16" else 2e-3)
      for title in ("ResNet-18", "ResNet-50") for option in ("float32", "bfloat16")
      for batch, iterations in ((1, 20), (8, 4), (32, 2)) if batch < 32 or title == "ResNet-18" and option == "float32"],
    Workload("2 ranks, ResNet-20, batch 128, synchronised statistics", "ranks", "resnet20", batch=128, side=32,
             option="sync", iterations=4),
    Workload("2 ranks, ResNet-20, batch 128, local statistics", "ranks", "resnet20", batch=128, side=32,
             option="local", iterations=4),
    Workload("fcn_resnet50 step, 2 images of 256 x 256, float32", "train", "fcn_resnet50", batch=2, side=256,
             iterations=1, drift=2e-2),
    Workload("fcn_resnet50 step, 2 images of 256 x 256, bfloat16", "train", "fcn_resnet50", batch=2, side=256,
             option="bfloat16", iterations=1, tolerance=5e-2, drift=1e-1),
    Workload("U-Net step, 4 images of 256 x 256, float32", "train", "unet", batch=4, side=256, iterations=1,
             drift=1e-2),
    Workload("bilinear upsampling by 8 and cross-entropy, 2 images of 256 x 256", "operation", "upsample", batch=2,
             side=32, iterations=4),
    Workload("transposed convolution 2x2, stride 2, 4 x 128 x 64 x 64", "operation", "conv_transpose", batch=4,
             side=64, iterations=4),
    Workload("add of 16 floats, forward", "overhead", "add", iterations=5),
    Workload("add of 16 floats, backward", "overhead", "add_backward", iterations=5),
    Workload("linear 16x16, forward, recording", "overhead", "linear", iterations=5),
    Workload("linear 16x16, forward, without recording", "overhead", "linear_plain", iterations=5),
    Workload("small MLP, step with Adam, batch 8", "mlp", "mlp", iterations=5),
]

MEMORY_WORKLOADS = [
    *WORKLOADS[:2],
    Workload("ResNet-101 step, batch 16, float32", "train", "resnet101", batch=16, side=224, iterations=1,
             drift=2e-2),
    WORKLOADS[2],
    *(workload for workload in WORKLOADS if workload.model == "fcn_resnet50"),
]


class Contender:
    """A process that measures one workload; see contender.h."""

    def __init__(self, name, command, environment=None):
        self.name = name
        self.rounds = []
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True, env={**os.environ, **(environment or {})})
        words = self.process.stdout.readline().split()
        if not words or words[0] != "ready":
            self.log.seek(0)
            sys.exit(f"{name} failed: {' '.join(command)}\n{self.log.read()[-3000:]}")
        self.outputs = [float(word) for word in words[1:]]
        self.process.send_signal(signal.SIGSTOP)

    def measure(self, iterations):
        """Runs some iterations. The others are stopped meanwhile: ONNX Runtime's threads spin long after its work."""
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"{iterations}\n")
        self.process.stdin.flush()
        self.rounds.append(statistics.median(float(word) for word in self.process.stdout.readline().split()))
        self.process.send_signal(signal.SIGSTOP)

    def peak(self):
        """Returns the largest resident set in GiB. The kernel counts it from the start of the program, unlike
        getrusage(), which begins with that of the process that started it."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 2**20

    def seconds(self):
        return statistics.median(self.rounds)

    def spread(self):
        return (max(self.rounds) - min(self.rounds)) / self.seconds()

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait()


def make_inputs(workload, folder):
    """Writes the weights and the batch that all contenders load."""
    import numpy
    import torch
    from safetensors.torch import save_file
    import compare_torch

    torch.manual_seed(1)
    if workload.kind in ("mlp", "overhead"):
        shapes = {"a": (16,), "b": (16,), "row": (1, 16), "x": (8, 16), "target": (8, 4), "weight": (16, 16),
                  "bias": (16,), "0.weight": (32, 16), "0.bias": (32,), "2.weight": (32, 32), "2.bias": (32,),
                  "4.weight": (4, 32), "4.bias": (4,)}
        tensors = {name: torch.randn(shape) / 4 for name, shape in shapes.items()}
        save_file(tensors, f"{folder}/small.safetensors")
        for name, tensor in tensors.items():
            tensor.numpy().astype(numpy.float32).tofile(f"{folder}/{name}.f32")
        return
    if workload.kind == "operation":  # the images are its input
        model, classes = torch.nn.ConvTranspose2d(128, 64, 2, 2), 21
        channels, zoom = (21, 8) if workload.model == "upsample" else (128, 1)
    else:
        model, channels, zoom = compare_torch.make_model(workload.model), 3, 1
        classes = model.fc.out_features if hasattr(model, "fc") else 21
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()},
              f"{folder}/weights.safetensors")
    sides = [workload.side] * 2
    is_dense = workload.kind == "operation" or workload.model in ("fcn_resnet50", "unet")
    labels = [workload.batch, *(zoom * side for side in sides)] if is_dense else [workload.batch]
    save_file({"images": torch.randn(workload.batch, channels, *sides), "labels": torch.randint(classes, labels)},
              f"{folder}/input.safetensors")


def commands(workload, options, folder):
    """Returns (name, command, environment) of every contender; tutti first."""
    arguments = [workload.kind, workload.model, folder, workload.option]
    result = [("tutti", [f"{options.build}/benchmarks/compare_tutti", *arguments], {})]
    if workload.kind in ("mlp", "overhead"):
        return result + [("LibTorch", [options.libtorch, *arguments], {})]
    torch = [sys.executable, str(HERE / "compare_torch.py"), *arguments]
    peers = {"eager": (torch + ["eager"], {}),
             "eager, jemalloc": (torch + ["eager"], {"LD_PRELOAD": options.jemalloc, "MALLOC_CONF": MALLOC_CONF}),
             "compile": (torch + ["compile"], {}),
             "compile, frozen": (torch + ["frozen"], {}),
             "ONNX Runtime": (torch + ["ONNX Runtime"], {}),
             "OpenVINO": (torch + ["OpenVINO"], {})}
    if workload.kind != "infer":
        peers = {name: peer for name, peer in peers.items() if name not in OF_INFERENCE}
    if workload.option == "bfloat16":
        peers.pop("ONNX Runtime", None)  # it has no bfloat16 on the CPU
    return result + [(name, *peers[name]) for name in options.peers if name in peers]


def check_outputs(workload, contenders):
    for other in contenders[1:]:
        for i, (ours, theirs) in enumerate(zip(contenders[0].outputs, other.outputs, strict=True)):
            tolerance = workload.drift if workload.kind in ("train", "ranks") and i > 0 else workload.tolerance
            if not abs(ours - theirs) <= tolerance * max(1, abs(theirs)):
                sys.exit(f"{workload.name}: expected output {i} of tutti and {other.name} to agree within {tolerance}, "
                         f"got {contenders[0].outputs} and {other.outputs}")


def text_of(seconds):
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def limit_text(ours, limit):
    """Returns the columns "limit" and "what limits" of a training step: its convolutions alone as oneDNN primitives,
    and the bytes of the rest at the speed of a copy."""
    if not limit:
        return "| "
    alone, rest = limit.seconds(), limit.outputs[0] / limit.outputs[1]
    return (f"{text_of(alone + rest)} ({ours.seconds() / (alone + rest):.2f}) | "
            f"convolutions {text_of(alone)}, bytes of the rest {text_of(rest)}")


def compare(workload, options):
    """Returns the row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(workload, folder)
        contenders = [Contender(*each) for each in commands(workload, options, folder)]
        check_outputs(workload, contenders)
        limit = None
        if workload.kind == "train":
            command = [f"{options.build}/benchmarks/compare_limit", "train", workload.model, folder, workload.option]
            limit = Contender("limit", command)
            contenders.append(limit)
        for _ in range(options.rounds):
            for contender in contenders:
                contender.measure(workload.iterations)
        for contender in contenders:
            contender.stop()
    if limit:
        contenders.remove(limit)
    ours, peers = contenders[0], contenders[1:]
    best = min((p for p in peers if p.name not in OF_INFERENCE), key=Contender.seconds)
    times = "; ".join(f"{p.name} {text_of(p.seconds())} ({p.seconds() / ours.seconds():.2f})" for p in peers)
    spread = max(c.spread() for c in contenders)
    ratio = best.seconds() / ours.seconds()
    row = (f"| {workload.name} | {text_of(ours.seconds())} | {times} | **{ratio:.2f}** | "
           f"{limit_text(ours, limit)} | {100 * spread:.0f}% |")
    print(row, flush=True)
    return row


def memory_contenders(workload, options, folder):
    """Returns (name, command, environment) of what is compared by memory: ours first, then PyTorch's."""
    arguments = [workload.kind, workload.model, folder, workload.option]
    tutti = [f"{options.build}/benchmarks/compare_tutti", *arguments]
    torch = [sys.executable, str(HERE / "compare_torch.py"), *arguments]
    jemalloc = {"LD_PRELOAD": options.jemalloc, "MALLOC_CONF": MALLOC_CONF}
    result = [("tutti", tutti, {}), ("tutti, recompute_output", [*tutti, "recompute-output"], {}),
              ("PyTorch eager", [*torch, "eager"], {}),
              ("PyTorch eager, jemalloc", [*torch, "eager"], jemalloc),
              ("PyTorch, checkpoint of each block", [*torch, "checkpoint"], {}),
              ("PyTorch, checkpoint of each block, jemalloc", [*torch, "checkpoint"], jemalloc)]
    return [each for each in result if options.jemalloc or each[2] is not jemalloc]


def compare_memory(workload, options):
    """Returns the rows of the table of peak memory and time. All contenders of a workload take turns."""
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(workload, folder)
        contenders = [Contender(*each) for each in memory_contenders(workload, options, folder)]
        check_outputs(workload, contenders)
        if contenders[0].outputs != contenders[1].outputs:
            sys.exit(f"{workload.name}: recompute_output changes the losses")
        for _ in range(options.rounds):
            for contender in contenders:
                contender.measure(workload.iterations)
        peaks = [contender.peak() for contender in contenders]
        for contender in contenders:
            contender.stop()
    plain = min(peak for contender, peak in zip(contenders, peaks) if contender.name.startswith("PyTorch eager"))
    rows = [f"| {workload.name} | {contender.name} | {peak:.2f} GiB | {peak / plain:.2f} | "
            f"{text_of(contender.seconds())} | {contender.seconds() / contenders[0].seconds():.2f} | "
            f"{100 * contender.spread():.0f}% |" for contender, peak in zip(contenders, peaks)]
    print(*rows, sep="\n", flush=True)
    return rows


def machine(options):
    import torch
    import torchvision

    def output(*command):
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "unknown")
    onednn = next((line.strip() for line in torch.__config__.show().splitlines() if "MKL-DNN" in line), "")
    return "\n".join([f"date:      {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%MZ}",
                      f"commit:    {output('git', '-C', str(HERE), 'rev-parse', '--short', 'HEAD')}",
                      f"processor: {model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
                      f"tutti:     {output(options.build + '/examples/train_resnet', '--version').splitlines()[0]}",
                      f"compiler:  {output('c++', '--version').splitlines()[0]}",
                      f"PyTorch:   {torch.__version__}, torchvision {torchvision.__version__}; {onednn}",
                      f"threads:   {os.environ['OMP_NUM_THREADS']} each; rounds: {options.rounds}"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--libtorch", required=True)
    parser.add_argument("--jemalloc", default="")
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="")
    parser.add_argument("--peers", nargs="*", default=["eager", "eager, jemalloc", "compile", "compile, frozen", "ONNX Runtime", "OpenVINO"])
    parser.add_argument("--memory", action="store_true", help="only the tables of peak memory and time of steps")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    load = [os.getloadavg()]
    rows = [] if options.memory else [compare(w, options) for w in WORKLOADS if options.only in w.name]
    memory = [row for w in MEMORY_WORKLOADS if options.only in w.name for row in compare_memory(w, options)]
    load.append(os.getloadavg())
    report = ["```", machine(options), *(f"load:      {l[0]:.2f} {when}" for l, when in zip(load, ("before", "after"))), "```", ""]
    if rows:
        report += ["| workload | tutti | peers, and their time over ours | best of PyTorch over ours | limit, and ours over it | what limits | spread |",
                   "| --- | --- | --- | --- | --- | --- | --- |", *rows, ""]
    report += ["| workload | | peak memory | over PyTorch's best | a step | over tutti's without the option | spread |",
               "| --- | --- | --- | --- | --- | --- | --- |", *memory, ""]
    pathlib.Path(options.out).write_text("\n".join(report))


if __name__ == "__main__":
    main()
