#!/usr/bin/env python3
"""Shows where the ranks of a failed run part, from the flight recorders that they have written.

usage: flight_recorder.py FOLDER [--calls N]

FOLDER is the run folder of train_resnet, or what TUTTI_FLIGHT_RECORDER named. It holds one file for
each rank, flight_recorder.BACKEND.RANK.jsonl, with the rank's last 200 collectives. For each group
whose ranks are not at the same call, the program prints the first call at which they differ, and
for each rank its last N calls (5). Times are seconds before the last file was written; clocks of
different hosts may differ. It needs Python 3.7 and nothing else.
"""
import argparse
import json
import pathlib
import sys


def printable(text):
    return "".join(c if c.isprintable() else "?" for c in text)


class Rank:
    """One file: a line about the rank, then a line for each of its last calls."""

    def __init__(self, path):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        head, self.calls = lines[0], lines[1:]
        self.rank, self.backend = head["rank"], head["backend"]
        self.failure, self.written = head["failure"], head["written"]
        self.count, self.library = head["calls"], head.get("library", "")
        self.groups = [(group["name"], tuple(group["ranks"])) for group in head["groups"]]
        for call in self.calls:
            name, ranks = self.groups[call["group"]]
            call["group"] = (name, ranks, call["group_number"])

    def in_group(self, group):
        return {call["sequence"]: call for call in self.calls if call["group"] == group}


def ranks_text(ranks):
    ranks = [str(rank) for rank in ranks]
    if len(ranks) == 1:
        return "rank " + ranks[0]
    if len(ranks) > 12:
        ranks = ranks[:12] + [f"{len(ranks) - 12} more"]
    return "ranks " + ", ".join(ranks[:-1]) + " and " + ranks[-1]


def size_text(size):
    for factor, unit in ((1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def call_text(call):
    parts = [printable(call["name"])] if call["name"] else []
    if call["operation"] != "barrier":
        parts.append(size_text(call["bytes"]))
    about = f" ({', '.join(parts)})" if parts else ""
    return f"{call['operation']} #{call['sequence']}{about}"


def state_text(call, end):
    text = f"issued {end - call['issued']:.3f} s before the end"
    if call["done"] is None:
        return text + ", nobody has seen it end"
    return (f"{text}, done after {1e3 * (call['done'] - call['issued']):.3f} ms, "
            f"waited {1e3 * call['waited']:.3f} ms")


def what(call):
    return call["operation"], call["name"], call["bytes"]


def print_by_call(calls, end):
    """Prints calls of one number, {rank: call}, equal ones in one line."""
    alike = {}
    for rank, call in sorted(calls.items()):
        alike.setdefault(what(call), []).append(rank)
    for ranks in alike.values():
        first = calls[ranks[0]]
        print(f"    {ranks_text(ranks)}: {call_text(first)}, {state_text(first, end)}")


def print_parting(group, ranks, end):
    """Prints where the ranks of one group part. Returns whether they do."""
    name, members, number = group
    calls = {r.rank: r.in_group(group) for r in ranks if r.rank in members}
    last = {rank: max(of_rank, default=0) for rank, of_rank in calls.items()}
    title = f"  group '{printable(name)}' of {len(members)} ranks"
    if number > 1:
        title += f", the {number}th of this name"
    for sequence in sorted(set().union(*calls.values())):
        here = {rank: of_rank[sequence] for rank, of_rank in calls.items() if sequence in of_rank}
        if len({what(call) for call in here.values()}) > 1:
            print(f"{title}: the ranks are at different calls at #{sequence}")
            print_by_call(here, end)
            return True
    front = max(last.values())
    behind = {}
    for rank, sequence in sorted(last.items()):
        if sequence < front:
            behind.setdefault(sequence, []).append(rank)
    if not behind:
        return False
    print(f"{title}: not all ranks have issued #{front}")
    print_by_call({r: of_rank[front] for r, of_rank in calls.items() if front in of_rank}, end)
    for sequence, of_ranks in sorted(behind.items()):
        if sequence == 0:
            print(f"    {ranks_text(of_ranks)}: none of its calls is in the recorder")
            continue
        first = calls[of_ranks[0]][sequence]
        print(f"    {ranks_text(of_ranks)}: last {call_text(first)}, {state_text(first, end)}")
    return True


def print_world(ranks, shown):
    end = max(rank.written for rank in ranks)
    known = set().union(*(members for rank in ranks for _, members in rank.groups))
    absent = sorted(known - {rank.rank for rank in ranks})
    print(f"{len(ranks)} of {len(known)} ranks ({ranks[0].backend}) have left a flight recorder")
    for library in sorted({rank.library for rank in ranks} - {""}):
        print(f"  {printable(library)}")
    if absent:
        print(f"  none of {ranks_text(absent)}: stopped, killed, or on a host whose files are elsewhere")
    if end - min(rank.written for rank in ranks) > 60:
        print("  the files were written more than a minute apart: some may be of another failure")
    failures = {}
    for rank in ranks:
        failures.setdefault(rank.failure, []).append(rank.rank)
    for failure, of_ranks in failures.items():
        print(f"  {ranks_text(of_ranks)} failed: {printable(failure)}")
    groups = {}
    for rank in ranks:  # in the order of their latest calls
        for call in rank.calls:
            groups[call["group"]] = max(groups.get(call["group"], 0), call["issued"])
    parted = [print_parting(group, ranks, end)
              for group, _ in sorted(groups.items(), key=lambda item: -item[1])]
    print(f"  in {parted.count(False)} of {len(parted)} groups all ranks are at the same call")
    for rank in ranks:
        print(f"  the last calls of rank {rank.rank}, of {rank.count} in all:")
        for call in rank.calls[max(0, len(rank.calls) - shown):]:
            print(f"    '{printable(call['group'][0])}' {call_text(call)}, {state_text(call, end)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="where the ranks have written their files")
    parser.add_argument("--calls", type=int, default=5, help="how many calls of each rank to print")
    options = parser.parse_args()
    paths = sorted(options.folder.glob("flight_recorder.*.*.jsonl"))
    if not paths:
        sys.exit(f"flight_recorder.py: no flight_recorder.BACKEND.RANK.jsonl in {options.folder}; a run "
                 "writes them where a group of several ranks fails")
    worlds = {}
    for path in paths:
        rank = Rank(path)
        worlds.setdefault(rank.backend, []).append(rank)
    for ranks in worlds.values():
        print_world(sorted(ranks, key=lambda rank: rank.rank), options.calls)


if __name__ == "__main__":
    main()
