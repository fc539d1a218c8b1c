"""Tests examples/flight_recorder.py on files as ranks write them. Usage: flight_recorder_reader_test.py"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

READER = pathlib.Path(__file__).parents[2] / "examples" / "flight_recorder.py"


def call(sequence, name, done=True, group=0, operation="all_reduce", size=192):
    return {"group": group, "group_number": 1, "sequence": sequence, "operation": operation,
            "name": name, "bytes": size, "issued": 1000 + sequence,
            "done": 1000.002 + sequence if done else None, "waited": 0.001 if done else None}


def write(folder, rank, calls, ranks=(0, 1, 2), failure="a cause", written=1100.0):
    groups = [{"name": "world", "ranks": list(ranks)}, {"name": "world/part0", "ranks": [0, 1]}]
    head = {"rank": rank, "backend": "mpi", "written": written, "failure": failure,
            "calls": len(calls), "groups": groups, "library": "Some MPI, MPI_THREAD_SERIALIZED"}
    lines = [head] + [dict(each, number=i + 1) for i, each in enumerate(calls)]
    path = pathlib.Path(folder) / f"flight_recorder.mpi.{rank}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Reader(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def read(self, *flags):
        return subprocess.run([sys.executable, "-B", READER, self.folder.name, *flags],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_shows_the_first_call_at_which_ranks_differ(self):
        write(self.folder.name, 0, [call(1, "a"), call(2, "b"), call(3, "bucket 1", False)])
        write(self.folder.name, 1, [call(1, "a"), call(2, "b"), call(3, "bucket 2", False)])
        write(self.folder.name, 2, [call(1, "a"), call(2, "b"), call(3, "bucket 1", False)])
        text = self.read().stdout
        self.assertIn("group 'world' of 3 ranks: the ranks are at different calls at #3", text)
        self.assertIn("ranks 0 and 2: all_reduce #3 (bucket 1, 192 B), issued 97.000 s before the "
                      "end, nobody has seen it end", text)
        self.assertIn("rank 1: all_reduce #3 (bucket 2, 192 B)", text)
        self.assertIn("ranks 0, 1 and 2 failed: a cause", text)
        self.assertIn("'world' all_reduce #2 (b, 192 B), issued 98.000 s before the end, done after "
                      "2.000 ms, waited 1.000 ms", text)

    def test_shows_ranks_that_are_behind_or_have_left_no_file(self):
        write(self.folder.name, 0, [call(1, "a"), call(1, "p", group=1), call(2, "b", False)])
        write(self.folder.name, 1, [call(1, "a"), call(1, "p", group=1)], failure="another")
        text = self.read("--calls", "0").stdout
        self.assertIn("2 of 3 ranks (mpi) have left a flight recorder", text)
        self.assertIn("none of rank 2: ", text)
        self.assertEqual(text.count("\n  Some MPI, MPI_THREAD_SERIALIZED\n"), 1)
        self.assertIn("rank 0 failed: a cause", text)
        self.assertIn("rank 1 failed: another", text)
        self.assertIn("group 'world' of 3 ranks: not all ranks have issued #2", text)
        self.assertIn("rank 1: last all_reduce #1 (a, 192 B)", text)
        self.assertIn("in 1 of 2 groups all ranks are at the same call", text)
        self.assertNotIn("'world' all_reduce", text)

    def test_compares_no_calls_that_a_ring_has_lost(self):
        write(self.folder.name, 0, [call(n, f"call {n}") for n in range(5, 9)])
        write(self.folder.name, 1, [call(n, f"call {n}") for n in range(7, 9)])
        write(self.folder.name, 2, [call(8, "call 8")])
        self.assertIn("in 1 of 1 groups all ranks are at the same call", self.read().stdout)

    def test_says_where_files_are_of_another_failure_or_there_are_none(self):
        result = self.read()
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("no flight_recorder.BACKEND.RANK.jsonl in", result.stderr)
        write(self.folder.name, 0, [call(1, "a\x1b[2J")])
        write(self.folder.name, 1, [call(1, "a\x1b[2J")], written=1e4)
        text = self.read().stdout
        self.assertIn("more than a minute apart", text)
        self.assertNotIn("\x1b", text)


if __name__ == "__main__":
    unittest.main()
