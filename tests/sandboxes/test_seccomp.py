"""The filter of system calls, run by a small machine that knows the five instructions it is made of."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest

from rollenv.sandboxes import seccomp

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
X86, ARM = 0xC000003E, 0xC00000B7


def verdict(program: bytes, arch: int, number: int, *args: int) -> int:
    """What the kernel would do with a call: classic BPF, as in linux/filter.h."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *args, *([0] * (6 - len(args))))
    at = accumulator = 0
    while True:
        code, yes, no, k = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif code == 0x06:
            return int(k)
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            at += yes if holds else no


@pytest.mark.parametrize(("machine", "arch", "column"), [("x86_64", X86, 0), ("aarch64", ARM, 1)])
def test_what_is_refused_is_refused_and_the_rest_goes_through(machine: str, arch: int, column: int) -> None:
    program = seccomp.program(machine)
    refused = {n[column] for n in (seccomp._REFUSED | seccomp._MOUNTING).values()}
    unknown = {n[column] for n in seccomp._UNKNOWN.values()}
    for number in range(470):
        expected = EPERM if number in refused else ENOSYS if number in unknown else ALLOW
        assert verdict(program, arch, number) == expected, number


def test_other_interfaces_of_the_kernel_are_closed() -> None:
    program = seccomp.program("x86_64")
    assert verdict(program, 0x40000003, 1) == KILL  # 32-bit calls
    assert verdict(program, X86, 0x40000000 + 165) == ENOSYS  # x32


def test_a_thread_may_be_made_and_a_namespace_may_not() -> None:
    program = seccomp.program("x86_64")
    assert verdict(program, X86, 56, 0x003D0F00) == ALLOW  # what pthread_create asks for
    for flag in seccomp._NAMESPACES:
        assert verdict(program, X86, 56, flag | 17) == EPERM


def test_a_terminal_cannot_be_typed_into() -> None:
    program = seccomp.program("x86_64")
    assert verdict(program, X86, 16, 0, 0x5401) == ALLOW  # TCGETS
    assert verdict(program, X86, 16, 0, 0x5412) == EPERM
    assert verdict(program, X86, 16, 0, 0x541C) == EPERM


@pytest.mark.parametrize(
    ("header", "column"),
    [("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 0), ("/usr/include/asm-generic/unistd.h", 1)],
)
def test_numbers_are_those_of_the_kernels_headers(header: str, column: int) -> None:
    if not Path(header).is_file():
        pytest.skip(f"needs the kernel's headers: {header} does not exist")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
    numbers = {name: int(number) for name, number in found}
    for name, ours in (seccomp._REFUSED | seccomp._MOUNTING | seccomp._UNKNOWN).items():
        if name in numbers:
            assert numbers[name] == ours[column], name


def test_the_engines_profile_refuses_the_same_but_mounting() -> None:
    profile = json.loads(seccomp.profile())
    named = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    assert named == set(seccomp._REFUSED) | set(seccomp._UNKNOWN)
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
