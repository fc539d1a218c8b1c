#!/usr/bin/env python3
"""Compares the data loader with torchvision's on JPEGs that it makes: images per second of decoding, random resized
crop, flip and normalisation, with as many workers on both sides.

    python3 benchmarks/data/run.py PROGRAM [WORKERS ...]

PROGRAM is build/release/benchmarks/data_loader, which a build with -DTUTTI_BUILD_BENCHMARKS=ON has. The Python needs
pillow, numpy, torch and torchvision. Both sides run in turn, several times; the figures are medians of all epochs but
each run's first, in which workers start.
"""
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from PIL import Image

CLASSES, IMAGES, BATCH, EPOCHS, ROUNDS = 4, 60, 32, 4, 3


def make_images(folder):
    """Writes JPEGs of the size and, roughly, the bytes of ImageNet's: smooth colours, edges, and some noise."""
    rng = np.random.default_rng(1)
    total = 0
    for number in range(CLASSES * IMAGES):
        width, height = (500, 375) if number % 2 else (375, 500)
        y, x = np.mgrid[0:height, 0:width] / 100
        picture = np.stack([np.sin(rng.uniform(1, 6) * x + rng.uniform(1, 6) * y + c) for c in range(3)], -1)
        picture += np.sign(np.sin(rng.uniform(5, 20) * (x * y)[..., None]) - 0.3)
        picture = np.clip(127 + 50 * picture + rng.normal(0, 8, picture.shape), 0, 255).astype(np.uint8)
        path = os.path.join(folder, f"class_{number % CLASSES}", f"{number}.jpg")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Image.fromarray(picture).save(path, quality=90)
        total += os.path.getsize(path)
    print(f"{CLASSES * IMAGES} images of 500 x 375 pixels, {total / CLASSES / IMAGES / 1000:.0f} kB each")


def measure(command, folder, workers):
    arguments = [folder, str(workers), str(BATCH), str(EPOCHS)]
    lines = subprocess.run(command + arguments, check=True, capture_output=True, text=True).stdout.split()
    return [float(line) for line in lines[1:]]


def main():
    ours = [sys.argv[1]]
    theirs = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "loader_torch.py")]
    with tempfile.TemporaryDirectory() as folder:
        make_images(folder)
        print("| workers | tutti, images/s | torchvision, images/s | ratio |\n| --- | --- | --- | --- |")
        for workers in map(int, sys.argv[2:] or ["1", "2"]):
            rates = {"ours": [], "theirs": []}
            for _ in range(ROUNDS):
                rates["ours"] += measure(ours, folder, workers)
                rates["theirs"] += measure(theirs, folder, workers)
            a, b = statistics.median(rates["ours"]), statistics.median(rates["theirs"])
            print(f"| {workers} | {a:.0f} | {b:.0f} | {a / b:.2f} |", flush=True)


if __name__ == "__main__":
    main()
