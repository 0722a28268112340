"""Robust process-shared mutexes and futexes through the C library, for the Python twin. No compiler
needed."""

import ctypes
import errno
import os
import platform
import struct
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}.get(
    platform.machine(), 0
)
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}.get(
    platform.machine(), -1
)
SLICE_NS = 100_000
FUTEX_WAIT, FUTEX_WAKE, FUTEX_WAIT_BITSET = 0, 1, 9
PR_SET_TIMERSLACK = 29


class Timespec(ctypes.Structure):
    """struct timespec."""

    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def init_mutex(address: int) -> None:
    """Make a robust process-shared mutex in zeroed shared memory."""
    attributes = ctypes.create_string_buffer(64)
    libc.pthread_mutexattr_init(attributes)
    libc.pthread_mutexattr_setpshared(attributes, 1)
    libc.pthread_mutexattr_setrobust(attributes, 1)
    libc.pthread_mutex_init(ctypes.c_void_p(address), attributes)


def lock_mutex(address: int, limit_s: float) -> int:
    """0, EOWNERDEAD (taken over, made consistent) or ETIMEDOUT."""
    now = Timespec()
    libc.clock_gettime(0, ctypes.byref(now))
    now.seconds += int(limit_s) + 1
    code = int(libc.pthread_mutex_timedlock(ctypes.c_void_p(address), ctypes.byref(now)))
    if code == errno.EOWNERDEAD:
        libc.pthread_mutex_consistent(ctypes.c_void_p(address))
    return code


def unlock_mutex(address: int) -> int:
    """0, or EPERM if not held."""
    return int(libc.pthread_mutex_unlock(ctypes.c_void_p(address)))


def futex_wake(address: int) -> None:
    """Wake who sleeps on the word."""
    libc.syscall(FUTEX_NUMBER, ctypes.c_void_p(address), FUTEX_WAKE, 1, None, None, 0)


def futex_wait(address: int, ticket: int, limit: Timespec) -> bool:
    """Sleep while the 32-bit word equals the ticket; True if the time limit passed."""
    code = libc.syscall(
        FUTEX_NUMBER, ctypes.c_void_p(address), FUTEX_WAIT, ctypes.c_int(ticket), ctypes.byref(limit), None, 0
    )
    return code == -1 and ctypes.get_errno() == errno.ETIMEDOUT


def futex_until(address: int, ticket: int, until_ns: int) -> bool:
    """Sleep while the 32-bit word equals the ticket; True once CLOCK_MONOTONIC says `until_ns`."""
    limit = Timespec(*divmod(until_ns, 10**9))
    word, times = ctypes.c_void_p(address), ctypes.byref(limit)
    code = libc.syscall(FUTEX_NUMBER, word, FUTEX_WAIT_BITSET, ctypes.c_int(ticket), times, None, -1)
    return code == -1 and ctypes.get_errno() == errno.ETIMEDOUT


def wake_precisely() -> None:
    """Let this thread's sleeps end when they should: no timer slack, and the shortest slice of the processor
    (told in `wall.c`)."""
    libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    libc.syscall(SCHED_SETATTR, 0, ctypes.create_string_buffer(wanted, len(wanted)), 0)


def nap(microseconds: int) -> None:
    """Sleep on the host (tests only: injected jitter)."""
    libc.usleep(microseconds)


def address_of(buf: Any) -> int:
    """Where a writable buffer is mapped in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buf))
