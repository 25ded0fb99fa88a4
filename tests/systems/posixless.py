"""Makes this process look like Windows to what asks for POSIX: modules and functions that Windows lacks are gone."""

import os
import select
import signal
import socket
import sys
import time

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
NAMES = {
    os: [
        "WNOHANG", "chown", "fchmod", "fork", "forkpty", "geteuid", "getgid", "getpgid", "getuid", "kill", "killpg",
        "mkfifo", "nice", "openpty", "posix_spawn", "posix_spawnp", "pread", "preadv", "pwrite", "pwritev",
        "register_at_fork", "sched_getaffinity", "sched_yield", "setpgid", "setsid", "statvfs", "sysconf", "uname",
        "wait", "waitpid", "waitid", "WIFEXITED", "WIFSIGNALED", "WTERMSIG", "WEXITSTATUS", "O_CLOEXEC", "O_NONBLOCK",
        "O_NOFOLLOW", "O_DIRECTORY",
    ],
    signal: [
        "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP",
        "SIGUSR1", "SIGUSR2", "SIGXFSZ", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "alarm", "pause", "pthread_kill",
        "pthread_sigmask", "setitimer", "sigpending", "sigwait",
    ],
    socket: ["MSG_DONTWAIT", "SO_REUSEPORT", "recv_fds", "send_fds"],
    select: ["epoll", "poll"],
    time: ["CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime", "clock_gettime_ns", "tzset"],
}  # fmt: skip


def hide() -> None:
    """Take away what Windows lacks."""
    sys.modules.update(dict.fromkeys(MODULES))
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
