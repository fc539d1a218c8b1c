#!/usr/bin/env python3
"""Reads event files of the trainer with TensorBoard's own reader, and compares them with metrics.jsonl.

usage: read_tensorboard.py TRAIN_RESNET FOLDER

TRAIN_RESNET is the program; FOLDER is removed and filled again. A run is stopped by a fault and resumed, so that two
processes write event files, and steps are made twice. Exits with 77, and says so, where Python has no tensorboard.
"""
import glob
import json
import os
import shutil
import subprocess
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(f"skipped: this Python ({sys.executable}) has no tensorboard: {error}")
    sys.exit(77)

TAGS = {"loss/train": "train_loss", "accuracy/train": "train_accuracy", "learning_rate": "learning_rate",
        "images_per_second": "images_per_second", "loss/test": "test_loss", "accuracy/test": "test_accuracy"}


def train(program, folder, *flags, fault=""):
    command = [program, "--dataset", "synthetic", "--threads", "1", "--batch-size", "16", "--ranks", "2", "--max-steps",
               "6", "--log-every", "1", "--checkpoint-every", "2", "--tensorboard", "--out", folder, *flags]
    done = subprocess.run(command, env={**os.environ, "TUTTI_FAULT": fault}, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, timeout=200, check=False)
    assert (done.returncode == 0) == (fault == ""), f"exit code {done.returncode}: {done.stderr.decode()}"


def main(program, folder):
    shutil.rmtree(folder, ignore_errors=True)
    # In the fourth step; the checkpoint that the run goes on from is that of the second one.
    train(program, folder, fault="rank=1,group=world/normalization,collective=130,action=raise")
    train(program, folder, "--resume")
    assert len(glob.glob(folder + "/events.out.tfevents.*")) == 2
    with open(folder + "/metrics.jsonl", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 6
    events = EventAccumulator(folder)
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(TAGS), events.Tags()
    for tag, key in TAGS.items():
        expected = [(row["step"], row[key]) for row in rows if key in row]
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in expected], (tag, found, expected)
        for (_, value), (_, number) in zip(found, expected):
            assert abs(value - number) <= 1e-6 * abs(number), (tag, found, expected)
    print(f"TensorBoard has read {len(TAGS)} scalars of {len(rows)} steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
