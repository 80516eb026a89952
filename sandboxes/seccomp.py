"""System calls that no sandbox needs and kernels have been broken through: one list, as a BPF program and for engines.

What is refused: mounting, namespaces, kernel modules and keys, clocks, tracing of the kernel, io_uring, raw hardware.
See seccomp(2) for the program's form; the calls' numbers are those of the kernel's own headers.
"""

from __future__ import annotations

import errno
import json
import platform
import struct

# name: number on x86_64, number on aarch64 (None: it does not exist there)
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "modify_ldt": (154, None),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
# Containers need these two, with a capability that agents lack, to lay out their writable folders.
_MOUNTING = {"mount": (165, 40), "umount2": (166, 39)}
# Refused as if the kernel did not know them: programs then do without.
_UNKNOWN = {
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_CLONE, _IOCTL = (56, 220), (16, 29)
_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in struct seccomp_data; the low halves of arguments
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def supported(machine: str | None = None) -> bool:
    """Whether there is a program for this kind of processor."""
    return (machine or platform.machine()) in _ARCHITECTURES


def program(machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`, for `bwrap --seccomp`.

    Args:
        machine: `x86_64` or `aarch64`; None: this machine's.
    """
    column, arch = _ARCHITECTURES[machine or platform.machine()]
    lines = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NR)]
    if column == 0:  # the x32 interface has numbers of its own
        lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for names, code in (({**_REFUSED, **_MOUNTING}, errno.EPERM), (_UNKNOWN, errno.ENOSYS)):
        for numbers in names.values():
            if (number := numbers[column]) is not None:
                lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | code)]
    refuse, allow = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    lines += [(_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _ARG0), (_ANY_BIT, 0, 1, sum(_NAMESPACES)), refuse, allow]
    lines += [(_EQUAL, 0, 4, _IOCTL[column]), (_LOAD, 0, 0, _ARG1), (_EQUAL, 1, 0, _TIOCSTI)]
    lines += [(_EQUAL, 0, 1, _TIOCLINUX), refuse, allow]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def profile() -> str:
    """The same for a container engine, as JSON; mounting is left to capabilities, which agents have none of."""
    rules: list[dict[str, object]] = [
        {"names": sorted(_REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM},
        {"names": sorted(_UNKNOWN), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    for flag in _NAMESPACES:
        bits = {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM, "args": [bits]})
    for command in (_TIOCSTI, _TIOCLINUX):
        same = {"index": 1, "value": command, "op": "SCMP_CMP_EQ"}
        rules.append({"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM, "args": [same]})
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})
