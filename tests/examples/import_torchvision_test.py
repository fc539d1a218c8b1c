#!/usr/bin/env python3
"""Tests of examples/import_torchvision.py.

    import_torchvision_test.py Writer       how it writes files; needs no PyTorch
    import_torchvision_test.py WithTorch    the way from a .pth file; exit status 77 without PyTorch and torchvision

With the variable CLASSIFY, the path of a built examples/classify, its probabilities are compared with torchvision's."""
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SCRIPT = os.path.join(SOURCE, "examples", "import_torchvision.py")
spec = importlib.util.spec_from_file_location("import_torchvision", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)
has_torch = all(importlib.util.find_spec(name) for name in ("torch", "torchvision", "PIL"))

CARD = {"model": "resnet20", "classes": 2, "channels": 1, "class_names": ["cat", "G\u00fcrteltier, \"quoted\""],
        "mean": [0.5], "std": [0.25], "resize_size": 32, "input_size": 28}
TENSORS = {"half": ("F16", (3,), struct.pack("<3e", 1, -2, 0.5)),
           "weight": ("F32", (2, 2), struct.pack("<4f", 1, 2, 3, 4)),
           "count": ("I64", (), struct.pack("<q", 7)),
           "empty": ("F32", (0, 4), b"")}


def read(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size)), file.read()


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)


class Writer(Folder):
    def test_the_file_holds_the_tensors_and_the_card(self):
        script.write_safetensors(self.path("a"), TENSORS, script.metadata_of(CARD))
        header, data = read(self.path("a"))
        metadata = header.pop("__metadata__")
        self.assertEqual(set(metadata), set(CARD))
        for key, value in CARD.items():
            self.assertEqual(metadata[key] if isinstance(value, str) else json.loads(metadata[key]), value)
        self.assertEqual(set(header), set(TENSORS))
        ends = []
        for name, (dtype, shape, content) in TENSORS.items():
            begin, end = header[name]["data_offsets"]
            self.assertEqual((header[name]["dtype"], tuple(header[name]["shape"])), (dtype, shape))
            self.assertEqual(data[begin:end], content)
            self.assertEqual(begin % max(1, script.element_size(TENSORS[name])), 0, name)
            ends.append(end)
        self.assertEqual(max(ends), len(data))

    def test_the_fixture_of_the_cpp_test_is_what_the_script_writes(self):
        path = self.path("fixture")
        script.write_safetensors(path, TENSORS, script.metadata_of(CARD))
        with open(path, "rb") as own, open(os.path.join(SOURCE, "tests", "fixtures", "imported.safetensors"), "rb") as file:
            self.assertEqual(own.read(), file.read())

    def test_a_card_that_does_not_fit_is_refused(self):
        for key, value, part in (("class_names", ["a"], "2 class names"), ("class_names", ["a", "\x1b[2J"], "control"),
                                 ("mean", [0.5, 0.5], "1 numbers in mean"), ("std", [0], "positive"),
                                 ("std", [float("nan")], "1 numbers in std"), ("input_size", 0, "crop"),
                                 ("resize_size", 20, "resize"), ("classes", 0, "class")):
            with self.assertRaisesRegex(script.ImportFailure, part):
                script.metadata_of(CARD | {key: value})

    def test_a_failed_write_leaves_the_old_file_and_no_draft(self):
        path = self.path("a")
        script.write_safetensors(path, TENSORS, {})
        with self.assertRaises(TypeError):
            script.write_safetensors(path, {"bad": ("F32", (1,), [1])}, {})
        self.assertEqual(os.listdir(self.folder), ["a"])
        self.assertIn("weight", read(path)[0])

    def test_wrappers_and_prefixes_are_removed(self):
        state = {"module.fc.weight": 1, "module.fc.bias": 2}
        found = script.named_tensors(script.unwrap({"epoch": 3, "state_dict": state}), lambda v: True, "x")
        self.assertEqual(found, {"fc.weight": 1, "fc.bias": 2})
        for prefix in ("_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "model."):
            self.assertEqual(script.named_tensors({prefix + "fc.bias": 2}, lambda v: True, "x"), {"fc.bias": 2})
        for state in ({}, [1], {"epoch": 3}, {1: 2}):
            with self.assertRaisesRegex(script.ImportFailure, "x: expected"):
                script.named_tensors(script.unwrap(state), lambda v: isinstance(v, str), "x")


class WithTorch(Folder):
    def call(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, cwd=self.folder)

    def save_resnet18(self):
        import torch
        import torchvision
        torch.manual_seed(1)
        model = torchvision.models.resnet18(weights=None, num_classes=3)
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(4, 3, 64, 64) * 2 + 1)  # statistics that are not those of a new network
        torch.save({"state_dict": model.state_dict(), "epoch": 1}, self.path("mine.pth"))
        with open(self.path("names.txt"), "w", encoding="utf-8") as file:
            file.write("cat\ndog\nG\u00fcrteltier\n")
        return model.eval()

    def test_a_pth_file_becomes_a_weights_file_with_the_same_tensors(self):
        import torch
        model = self.save_resnet18()
        done = self.call("resnet18", "--pth", "mine.pth", "--classes-file", "names.txt", "--crop", "64", "--resize", "72")
        self.assertEqual(done.returncode, 0, done.stderr)
        header, data = read(self.path("resnet18.safetensors"))
        metadata = header.pop("__metadata__")
        self.assertEqual(json.loads(metadata["class_names"])[2], "G\u00fcrteltier")
        self.assertEqual((metadata["model"], metadata["classes"], metadata["input_size"]), ("resnet18", "3", "64"))
        state = model.state_dict()
        self.assertEqual(set(header), set(state))
        for name, tensor in state.items():
            begin, end = header[name]["data_offsets"]
            own = torch.frombuffer(bytearray(data[begin:end]), dtype=tensor.dtype).reshape(header[name]["shape"])
            self.assertTrue(torch.equal(own, tensor), name)
        if "CLASSIFY" in os.environ:
            self.compare_with_classify(model)

    def compare_with_classify(self, model):
        """The same picture through torchvision's transforms and network, and through examples/classify."""
        import torch
        from PIL import Image
        from torchvision import transforms
        picture = os.path.join(SOURCE, "tests", "fixtures", "images", "rgb.png")
        transform = transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor(),
                                        transforms.Normalize(script.IMAGENET["mean"], script.IMAGENET["std"])])
        with torch.no_grad():
            expected = model(transform(Image.open(picture).convert("RGB"))[None]).softmax(1)[0]
        done = subprocess.run([os.environ["CLASSIFY"], self.path("resnet18.safetensors"), picture],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        own = {line.split()[1]: float(line.split()[0]) for line in done.stdout.splitlines()[1:]}
        for name, probability in zip(("cat", "dog", "G\u00fcrteltier"), expected.tolist()):
            self.assertAlmostEqual(own[name], probability, delta=2e-5)

    def test_what_cannot_be_imported_is_one_line_and_exit_status_2(self):
        import torch
        self.save_resnet18()
        torch.save(torch.nn.Linear(1, 1), self.path("module.pth"))  # a pickled object, which could run code
        torch.save({"a": torch.zeros(1, dtype=torch.complex64)}, self.path("complex.pth"))
        with open(self.path("text.pth"), "w") as file:
            file.write("no weights\n" * 10)
        for arguments, part in ((("resnet18", "--pth", "absent.pth"), "absent.pth"),
                                (("resnet18", "--pth", "text.pth"), "text.pth"),
                                (("resnet18", "--pth", "module.pth"), "weights_only=True"),
                                (("x", "--pth", "complex.pth"), "--classes is needed"),
                                (("x", "--pth", "complex.pth", "--classes", "1", "--channels", "3"), "complex64"),
                                (("resnet18", "--pth", "mine.pth", "--classes", "7"), "(3, 512)"),
                                (("resnet18", "--pth", "mine.pth", "--std", "1,0,1"), "positive"),
                                (("resnet18", "--pth", "mine.pth", "--classes-file", "mine.pth"), "--classes-file"),
                                (("no_such_model",), "no_such_model"), (("resnet18", "--weights", "X"), "X")):
            sizes = ("--resize", "64", "--crop", "64") if "--pth" in arguments else ()
            done = self.call(*arguments, *sizes)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(part, done.stderr)
        self.assertFalse([name for name in os.listdir(self.folder) if "safetensors" in name])


if __name__ == "__main__":
    if "WithTorch" in sys.argv and not has_torch:
        print("skipped: this Python has no torch, torchvision and PIL; -DPython3_EXECUTABLE names another Python")
        sys.exit(77)
    unittest.main()
