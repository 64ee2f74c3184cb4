"""The real compiler for TPUs, on machines without one: does a JAX function build, and what does it cost.

libtpu compiles for a topology that is only described. Everything it says is known while compiling: an
estimate, never a measurement. What it says is read from three places: the compiled program's own account
of memory, the static profile (estimated cycles for each operation), and the schedule of bundles (very long
instruction words) with the units that each bundle uses.
"""

import glob
import os
import re
import tempfile

import jax
from jax.experimental import topologies

#: One described slice for each generation; a single device of it is compiled for.
TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:1x1",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:1x1",
    "tpu7x": "tpu7x:2x2x1",
}
#: The passes whose dumps are read; those of all would be 100 MB for each program.
_PASSES = ".*final.*"


class Dumps:
    """Folders that the compiler writes to. Made before libtpu is loaded, which reads them once."""

    def __init__(self, profile):
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-check-")
        self.schedule = os.path.join(self._folder.name, "schedule")
        self.profile = os.path.join(self._folder.name, "profile") if profile else None
        settings = [
            f"--xla_jf_dump_to={self.schedule}",
            "--xla_jf_dump_llo_text=true",
            f"--xla_jf_dump_llo_pass_label_regex={_PASSES}",
        ]
        os.mkdir(self.schedule)
        if profile:
            os.mkdir(self.profile)
            settings.append(f"--xla_jf_dump_static_llo_profile_to={self.profile}")
        before = os.environ.get("LIBTPU_INIT_ARGS", "")
        os.environ["LIBTPU_INIT_ARGS"] = " ".join([before, *settings]).strip()

    def close(self):
        self._folder.cleanup()


def compile_function(function, structures, target):
    """Compiles a function of arrays for one device of a target; structures have shape and dtype."""
    topology = topologies.get_topology_desc(TOPOLOGIES[target], platform="tpu")
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    placed = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for s in structures]
    return jax.jit(function, out_shardings=sharding).lower(*placed).compile()


def measure(function, structures, target, dumps):
    """Compiles and returns what is known of the program; empties the dumps."""
    memory = compile_function(function, structures, target).memory_analysis()
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "cycles": None if dumps.profile is None else read_profile(dumps.profile),
        "operations": read_schedule(dumps.schedule),
    }


def read_profile(folder):
    """Estimated cycles by operation; empties the folder."""
    cycles = {}
    for path in glob.glob(f"{folder}/*static_llo_profile*"):
        with open(path, errors="replace") as file:
            found = re.findall(r'hlo_op_name: "([^"]+)"\s+estimated_cycles: (\d+)', file.read())
        cycles.update((name, int(count)) for name, count in found)
        os.remove(path)
    return cycles


def read_schedule(folder):
    """For each operation: bundles, how often each unit is used in them, and bytes of VMEM; empties the folder."""
    operations = {}
    for path in sorted(glob.glob(f"{folder}/*")):
        match = re.match(r"\d+-(.+)-\d+-(final_hlo-static|schedule-analysis_final|pre-finalize)", os.path.basename(path))
        # Names in angle brackets and `TLP` are the frame around the program: start, end, dispatch.
        # A custom call that has no program of its own leaves an empty file.
        if match and not match[1].startswith(("<", "TLP")) and os.path.getsize(path):
            with open(path, errors="replace") as file:
                text = file.read()
            entry = operations.setdefault(match[1], {"name": match[1]})
            if match[2] == "final_hlo-static":
                entry.update(_units(text))
            elif match[2] == "pre-finalize":
                entry["vmem_bytes"] = _vmem(text)
            else:
                entry["bundles"] = int(re.search(r"total scheduled bundles:\s+(\d+)", text)[1])
        os.remove(path)
    return [entry for entry in operations.values() if "bundles" in entry]


def _units(text):
    """Uses of each unit over all bundles, and how many there could be in one bundle."""
    head, _, body = text.partition("== UTILIZATION:")
    names, capacities = head.strip().splitlines()[-2:]
    names = [name.strip() for name in names.split(",")]
    used = [0] * len(names)
    for line in body.split("\n"):
        for index, count in enumerate(line.split()):
            used[index] += int(count)
    capacities = [int(capacity) for capacity in capacities.split()]
    return {"units": {n: {"used": u, "capacity": c} for n, u, c in zip(names, used, capacities)}}


def _vmem(text):
    sizes = re.findall(r"^\s*#allocation\d+ \[.*?space=vmem, size = (0x[0-9a-f]+)", text, re.MULTILINE)
    return sum(int(size, 16) for size in sizes)
