"""What tests need from the machine: commands, packages, ports, numbers."""

import base64
import contextlib
import fcntl
import hashlib
import itertools
import os
import platform
import secrets
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from places import ROOT

CACHE = ROOT / ".cache"
REGION = "eu-west-1"  # that of the tests
PACKAGE, VERSION = "@dynoxide/linux-x64", "1.2.1"
INTEGRITY = "sha512-sBHqlxJ9ANkLluFkYRfd5r8Y0ApFew4FhOrlhgRAgD4XzEoFOukEo1nuBTQ1+jTtofqwn4NWQ2k0Tn5mNTjgUg=="


def missing(message: str):
    """Fail in CI, and elsewhere skip, saying what is missing and how to get it."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def needs(command: str, how: str) -> str:
    """Return the path of ``command``. Without it the test fails in CI, and elsewhere is skipped, saying how to get it."""
    path = shutil.which(command)
    if path is None:
        missing(f"{command} is not installed: {how}")
    return path


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1, signed by itself; return its file, and that of its key."""
    chain, private = folder / "chain.pem", folder / "key.pem"
    make = [needs("openssl", "apt-get install openssl"), "req", "-x509", "-nodes", "-days", "1", "-newkey", "ec"]
    make += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", private, "-out", chain]
    make += ["-subj", "/CN=onceward's tests", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True)
    return chain, private


def fetched(name: str, fetch: Callable[[Path], Path]) -> Path:
    """Return what ``fetch`` puts somewhere into an empty folder; it is kept in the cache, and fetched once."""
    target = CACHE / name
    if target.exists():
        return target
    CACHE.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="fetch-", dir=CACHE))
    try:
        found = fetch(work)
        try:
            found.replace(target)
        except OSError:
            assert target.exists()  # another run was faster
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def brought(command: list[object], work: Path) -> None:
    done = subprocess.run(list(map(str, command)), cwd=work, capture_output=True, text=True, timeout=600)
    if done.returncode:
        missing(f"could not fetch: {command}: {done.stdout[-300:]}{done.stderr[-300:]}")


def dynoxide() -> Path:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        missing("the DynamoDB-compatible test server (dynoxide, from npm) is fetched for Linux on x86-64 only")
    return fetched(f"dynoxide-{VERSION}", lambda work: from_npm(PACKAGE, VERSION, INTEGRITY, "package/dynoxide", work))


def typescript() -> Path:
    version = "5.9.3"
    integrity = "sha512-jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw=="
    return fetched(f"typescript-{version}", lambda work: from_npm("typescript", version, integrity, "package", work))


def from_npm(package: str, version: str, integrity: str, member: str, work: Path) -> Path:
    """Fetch a package, check it against its pinned digest, and return a file or folder of it."""
    npm = needs("npm", f"{package} comes from it: apt-get install npm")
    brought([npm, "pack", "--silent", f"{package}@{version}"], work)
    (archive,) = work.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    assert f"sha512-{digest}" == integrity, "what npm sent is not the package that was pinned"
    with tarfile.open(archive) as tar:
        inner = [one for one in tar if one.name == member or one.name.startswith(f"{member}/")]
        tar.extractall(work, inner, filter="data")
    made = work / member
    if made.is_file():
        made.chmod(0o755)
    return made


def _number() -> int:
    """Return the number of this process among those that run tests."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def numbers() -> Iterator[int]:
    """Return the one counter of this process, with a start of its own: no two tables or queues of tests have one name."""
    return _COUNTED


def _ports() -> Iterator[int]:
    """Give ports of this process's own in turn, so that nobody takes that of a server which is down for a moment."""
    share = 2_500
    first, at = 10_000 + share * (_number() % 4), secrets.randbelow(share)
    return itertools.chain(range(first + at, first + share), itertools.cycle(range(first, first + share)))


_PORTS = _ports()
# A byte of this file is locked for each port, so that no two processes, of this run or another one, take the same.
_TAKEN = os.open(Path(tempfile.gettempdir()) / "onceward-ports", os.O_RDWR | os.O_CREAT)
_COUNTED = itertools.count(10**6 * _number())


def free_port(beside: int = 0) -> int:
    """Return a port that nobody has, nor the one so far above it; below those that systems give to connections."""
    for port in itertools.islice(_PORTS, 1000):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + beside if beside else 0))
            fcntl.lockf(_TAKEN, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            return port
    raise AssertionError("this machine has no free port")


def listens(port: int, process: subprocess.Popen) -> bool:
    """Wait until a server that was just started takes connections."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None:
                return False
            time.sleep(0.01)
        else:
            return True
    return False
