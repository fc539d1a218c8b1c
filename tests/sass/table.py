"""Prints a table of the machine code (SASS) of the library's CUDA kernels, and checks rules on it.

Usage: table.py LIBRARY NVCC_VERSION TABLE [--all]
LIBRARY is libtutti.a with CUDA. cuobjdump and nvdisasm must be in the PATH. TABLE receives one line for each kernel
and architecture, over all its instantiations; with --all, one for each instantiation. The exit code is 1 where a rule
is broken, which is then named on stderr:
  - registers times threads of a block fit into the register file of a multiprocessor;
  - kernels that are written for vectors load and store 16 bytes at a time in a loop.
"""
import collections
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

REGISTER_FILE = 65536  # 32-bit registers of a multiprocessor, on sm_80 and sm_90
UNKNOWN_THREADS = 1024  # the threads of a block where a kernel has no __launch_bounds__

# Instantiations that must load and store 16 bytes at once in a loop: (pattern of the name, loads, stores).
WHOLE_VECTOR = r"((bf16|f16), 8|float, 4|double, 2)>"
VECTORISED = [
    (r"^(apply|apply_grad)_kernel<\w+, true, true,", True, True),
    (r"^gradient_sums_kernel<\w+, true, true,", True, False),
    (r"^moments_kernel<\w+, true, true,", True, False),
    (r"^(forward|input_grad)_kernel<" + WHOLE_VECTOR, True, True),
    (r"^(average|max)_(forward|backward)_kernel<" + WHOLE_VECTOR, True, True),
    (r"^step_kernel<", True, True),
]


class Kernel:
    """What the machine code of one instantiation on one architecture shows."""

    def __init__(self, name, arch):
        self.name, self.arch = name, arch
        self.registers = self.stack = self.shared = 0
        self.threads = UNKNOWN_THREADS
        self.instructions = []  # (address, operation, label that it branches to or None)
        self.labels = {}  # label: address
        self.local = self.local_in_loops = 0
        self.loads, self.stores = collections.Counter(), collections.Counter()  # in loops: bits: instructions

    def blocks(self):
        """The blocks of a multiprocessor that the registers allow; a warp takes registers in units of 256."""
        return REGISTER_FILE // (-(-self.registers // 8) * 8 * -(-self.threads // 32) * 32)

    def finish(self):
        """Counts the instructions. A loop is what lies between a label and a later branch back to it."""
        loops = [(self.labels[label], address) for address, _, label in self.instructions
                 if label in self.labels and self.labels[label] < address]
        for address, operation, _ in self.instructions:
            parts = operation.split(".")
            inside = any(begin <= address <= end for begin, end in loops)
            if parts[0] in ("LDL", "STL"):
                self.local += 1
                self.local_in_loops += inside
            if inside and parts[0] in ("LDG", "STG"):
                width = next((int(w) for w in ("128", "64") if w in parts), 32)
                width = next((int(p[1:]) for p in parts if p in ("U8", "S8", "U16", "S16")), width)
                (self.loads if parts[0] == "LDG" else self.stores)[width] += 1


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def short_names(mangled):
    """The names without namespaces, parameters and return types: apply_kernel<bf16, true, true, false>."""
    names = run("c++filt", "-p", input="\n".join(mangled)).splitlines()
    result = {}
    for key, name in zip(mangled, names):
        name = re.sub(r"\(anonymous namespace\)::|tutti::(\w+::)*|^void ", "", name)
        name = name.replace("__nv_bfloat16", "bf16").replace("__half", "f16").replace("unsigned ", "u")
        result[key] = name
    return result


SECTION = re.compile(r"\s*\.section\s+\.(text|nv\.info)\.(\w+)")
LABEL = re.compile(r"^(\.L_x_\d+):")
CODE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*);")


def kernels_of(cubin, arch):
    """Disassembles a cubin and returns its kernels by their mangled names."""
    kernels = collections.defaultdict(lambda: Kernel("", arch))
    usage = run("cuobjdump", "-res-usage", str(cubin))
    for name, numbers in re.findall(r"Function (\w+):\n\s*(.*)", usage):
        values = dict(re.findall(r"(\w+):(\d+)", numbers))
        k = kernels[name]
        k.registers, k.stack, k.shared = int(values["REG"]), int(values["STACK"]), int(values["SHARED"])
    kind, current, waiting, in_threads = None, None, [], False
    for line in run("nvdisasm", str(cubin)).splitlines():
        if re.match(r"\s*\.section\s", line):
            match = SECTION.match(line)
            kind, current = (match[1], kernels.get(match[2])) if match else (None, None)
            waiting = []
        elif not current:
            continue
        elif kind == "nv.info":
            if "nvinfo :" in line:
                in_threads = "EIATTR_MAX_THREADS" in line
            elif in_threads and ".word" in line:
                current.threads, in_threads = int(line.split()[-1], 16), False
        elif match := LABEL.match(line):
            waiting.append(match[1])
        elif match := CODE.match(line):
            address = int(match[1], 16)
            for label in waiting:
                current.labels[label] = address
            waiting = []
            target = re.search(r"`\((\.L_x_\d+)\)", match[3]) if match[2].startswith("BRA") else None
            current.instructions.append((address, match[2], target and target[1]))
    for kernel in kernels.values():
        kernel.finish()
    return dict(kernels)


def read_library(library):
    """Returns the kernels of all cubins in the archive."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for member in run("ar", "t", library).split():
            if member.endswith(".cu.o"):
                with open(f"{folder}/{member}", "wb") as out:
                    subprocess.run(("ar", "p", library, member), check=True, stdout=out)
                run("cuobjdump", "-xelf", "all", member, cwd=folder)
        cubins = sorted(pathlib.Path(folder).glob("*.cubin"))
        archs = [re.search(r"(sm_\w+)\.cubin$", c.name)[1] for c in cubins]
        groups = list(pool.map(kernels_of, cubins, archs))
    names = short_names(sorted({name for group in groups for name in group}))
    result = []
    for cubin, group in zip(cubins, groups):
        for mangled, kernel in group.items():
            if names[mangled].startswith("cub::"):  # NVIDIA's own kernels
                continue
            kernel.name = names[mangled]
            kernel.file = cubin.name.split(".")[0]
            result.append(kernel)
    return result


def widths(counter):
    return " ".join(f"{bits}:{counter[bits]}" for bits in sorted(counter, reverse=True)) or "-"


def span(values):
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def line_of(group):
    """The line of a table for some instantiations of one kernel: ranges, and sums of instructions."""
    loads = sum((k.loads for k in group), collections.Counter())
    stores = sum((k.stores for k in group), collections.Counter())
    columns = [len(group), span([k.threads for k in group]), span([k.registers for k in group]),
               span([k.blocks() for k in group]), span([k.shared for k in group]), span([k.stack for k in group]),
               sum(k.local for k in group), sum(k.local_in_loops for k in group), widths(loads), widths(stores)]
    return " | ".join(str(c) for c in columns)


def broken_rules(kernels):
    for k in kernels:
        what = f"{k.file}.cu, {k.name} on {k.arch}"
        if k.blocks() < 1:
            yield f"{what}: {k.registers} registers times {k.threads} threads exceed the register file"
        for pattern, loads, stores in VECTORISED:
            if re.match(pattern, k.name):
                if loads and not k.loads[128]:
                    yield f"{what}: expected LDG.128 in a loop, found {widths(k.loads)}"
                if stores and not k.stores[128]:
                    yield f"{what}: expected STG.128 in a loop, found {widths(k.stores)}"
    for pattern, _, _ in VECTORISED:
        if not any(re.match(pattern, k.name) for k in kernels):
            yield f"no kernel matches '{pattern}': correct VECTORISED in tests/sass/table.py"


def main():
    library, version, table = sys.argv[1:4]
    each = "--all" in sys.argv[4:]
    kernels = read_library(library)
    groups = collections.defaultdict(list)
    for k in kernels:
        groups[k.file, k.name if each else k.name.split("<")[0].split("(")[0], k.arch].append(k)
    with open(table, "w") as out:
        print(f"# nvcc {version}", file=out)
        print("# file: kernel | arch | instantiations | threads | registers | blocks that registers allow | "
              "shared bytes | stack bytes | LDL and STL, in loops | bits:loads in loops | bits:stores in loops", file=out)
        for (file, name, arch), group in sorted(groups.items()):
            print(f"{file}: {name} | {arch} | {line_of(group)}", file=out)
    broken = sorted(broken_rules(kernels))
    for text in broken:
        print(f"sass: {text}", file=sys.stderr)
    return 1 if broken or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
