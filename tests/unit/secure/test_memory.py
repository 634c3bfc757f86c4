"""Memory that this machine can still give, as the kernel's files say it."""

import math
import subprocess
import sys

import pytest

from mpcvit.secure.memory import available_bytes, peak_bytes

GB = 10**9


@pytest.fixture
def machine(tmp_path):
    """A machine with 8 GiB available, whose control groups a test writes."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {8 * 2**20} kB\n")
    (proc / "self" / "cgroup").write_text("")
    groups.mkdir()
    return proc, groups


def put(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")


def test_without_groups_it_is_the_machines(machine):
    assert available_bytes(*machine) == 8 * 2**30


def test_nothing_is_limited_where_nothing_is_known(tmp_path):
    assert available_bytes(tmp_path, tmp_path) == math.inf


def test_the_tightest_group_of_version_2_counts(machine):
    proc, groups = machine
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    put(groups / "outer", memory_max=3 * GB, memory_current=2 * GB)
    stat = f"anon 5\ninactive_file {GB // 4}\nactive_file {GB // 4}"
    put(groups / "outer" / "inner", memory_max="max", memory_current=GB, memory_stat=stat)
    assert available_bytes(proc, groups) == GB
    put(groups / "outer" / "inner", memory_max=GB, memory_current=GB)
    assert available_bytes(proc, groups) == GB // 2  # file contents that can be dropped
    put(groups / "outer", memory_current=4 * GB)
    assert available_bytes(proc, groups) == 0


def test_a_group_of_version_1_whose_path_is_that_of_the_host(machine):
    proc, groups = machine
    (proc / "self" / "cgroup").write_text("5:cpu:/x\n4:memory:/docker/abc\n0::/\n")
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.limit_in_bytes").write_text(f"{2 * GB}\n")
    (groups / "memory" / "memory.usage_in_bytes").write_text(f"{GB}\n")
    stat = f"total_inactive_file {GB // 8}\ntotal_active_file {GB // 8}\n"
    (groups / "memory" / "memory.stat").write_text(stat)
    assert available_bytes(proc, groups) == GB + GB // 4


def test_a_peak_is_the_processes_own():
    """A child of a large parent starts small; `getrusage` would say otherwise."""
    ballast = bytearray(300_000_000)
    code = (
        "from mpcvit.secure.memory import peak_bytes as p; "
        "a = p(); b = b'1' * 50_000_000; print(a, p())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before < 100_000_000 < len(ballast)
    assert 45_000_000 < after - before < 60_000_000
    assert peak_bytes() > 300_000_000
