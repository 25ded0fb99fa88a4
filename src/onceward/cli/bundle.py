"""Makes the zip of an AWS Lambda function or layer: this installation of onceward, its dependencies, and files of the user.

The same input gives the same bytes: files are sorted and have one time, and bytecode does not name the time of its source.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import onceward

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}  # Lambda's names, and those of wheels
_OLD_GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_26")  # Amazon Linux 2 has glibc 2.26
_GLIBC = (
    *_OLD_GLIBC,
    "manylinux_2_27",
    "manylinux_2_28",
    "manylinux_2_31",
    "manylinux_2_34",
)  # Amazon Linux 2023: 2.34
_NOT_IN_LAMBDA = {"cli": "cli", "dashboard": "dashboard", "testing": None}  # rooms, and the extra that brings each back
_MOMENT = (1980, 1, 1, 0, 0, 0)  # the first that a zip can hold
LARGEST = 250 * 2**20  # bytes; Lambda's documented limit for a function with its layers, unzipped


class CannotBundle(Exception):
    """The zip cannot be made. The text says why, and what to do."""


class Bundle(NamedTuple):
    """A zip that was made.

    Attributes:
        path: where it is.
        zipped: its bytes.
        unzipped: the bytes of the files in it.
    """

    path: str
    zipped: int
    unzipped: int


class LambdaTarget(NamedTuple):
    """What the zip is for.

    Attributes:
        python: the function's Python.
        machine: the function's architecture.
        layer: whether it is a layer.
        bytecode: whether modules are compiled in it. Lambda cannot keep bytecode, so otherwise each cold start compiles them.
    """

    python: str
    machine: str
    layer: bool
    bytecode: bool

    @property
    def folder(self) -> str:
        """Where modules are in the zip."""
        return "python/" if self.layer else ""

    @property
    def place(self) -> str:
        """Where modules are when Lambda runs them. Tracebacks say so."""
        return "/opt/python" if self.layer else "/var/task"


def bundle(out: Path, target: LambdaTarget, extras: Sequence[str], files: Sequence[Path], stage: Path) -> Bundle:
    """Make the zip ``out``. ``stage`` is an empty folder for the files on their way.

    Raises:
        CannotBundle: as it says.
    """
    if missing := [file for file in files if not file.exists()]:
        raise CannotBundle(f"there is no file {missing[0]}")
    here = _installed(extras)
    _take_dependencies(here, target, extras, stage)
    _take_ourselves(here, extras, stage)
    for file in files:
        _take_file(file, stage)
    if target.bytecode:
        _compile(stage, target.place)
    found = [path for path in stage.rglob("*") if path.is_file()]
    unzipped = sum(path.stat().st_size for path in found)
    if unzipped > LARGEST:
        raise CannotBundle(
            f"the files have {unzipped / 2**20:.0f} MiB, and Lambda takes {LARGEST / 2**20:.0f} MiB: leave out an extra or a file"
        )
    _write(out, sorted((target.folder + path.relative_to(stage).as_posix(), path) for path in found))
    return Bundle(str(out), out.stat().st_size, unzipped)


def _installed(extras: Sequence[str]) -> Distribution:
    try:
        here = distribution("onceward")
    except PackageNotFoundError:
        raise CannotBundle(
            "onceward is not installed here, so its dependencies are not known: pip install onceward"
        ) from None
    known = here.metadata.get_all("Provides-Extra") or []
    if unknown := [extra for extra in extras if extra not in known]:
        raise CannotBundle(f"onceward has no extra {unknown[0]!r}. It has: {', '.join(sorted(known))}")
    return here


def _take_dependencies(here: Distribution, target: LambdaTarget, extras: Sequence[str], stage: Path) -> None:
    if find_spec("pip") is None:
        raise CannotBundle("pip is needed to get the dependencies, and is not installed here: python -m ensurepip")
    glibc = _OLD_GLIBC if target.python == "3.11" else _GLIBC
    platforms = [word for name in reversed(glibc) for word in ("--platform", f"{name}_{MACHINES[target.machine]}")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-compile", "--no-warn-conflicts", "--target", str(stage), "--only-binary", ":all:"]
    command += ["--implementation", "cp", "--python-version", target.python, *platforms]
    done = subprocess.run(
        [*command, *_requirements(here, extras)], capture_output=True, text=True, check=False, errors="replace"
    )
    if done.returncode:
        told = [text.strip() for text in done.stderr.splitlines() if text.startswith("ERROR")] or ["pip failed"]
        raise CannotBundle(
            f"no wheels for Python {target.python} on {target.machine}, or no index: pip says: {' '.join(told)}"
        )
    shutil.rmtree(stage / "bin", ignore_errors=True)
    for note in [
        *stage.glob("*.dist-info/RECORD"),
        *stage.glob("*.dist-info/INSTALLER"),
        *stage.glob("*.dist-info/REQUESTED"),
    ]:
        note.unlink()  # they tell of this installation, and differ between two


def _requirements(here: Distribution, extras: Sequence[str]) -> list[str]:
    """Return what onceward requires with these extras. If asked for onceward itself, pip would install another one."""
    wanted: list[str] = []
    for text in here.requires or []:
        requirement, _, marker = text.partition(";")
        condition = re.search(r"""extra == ["']([^"']+)""", marker)  # the only marker in our pyproject.toml
        if condition is None or condition[1] in extras:
            ours = re.match(r"onceward\[(.*)\]", requirement)
            wanted += [requirement.strip()] if ours is None else _requirements(here, ours[1].split(","))
    return wanted


def _take_ourselves(here: Distribution, extras: Sequence[str], stage: Path) -> None:
    """Copy the modules that run now: the same version as this command, also when it is installed from a checkout."""
    source = Path(onceward.__file__).parent
    out = {str(source / room) for room, extra in _NOT_IN_LAMBDA.items() if extra is None or extra not in extras}

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "__pycache__" or os.path.join(folder, name) in out]

    shutil.copytree(source, stage / "onceward", ignore=left_out)
    told = stage / f"onceward-{onceward.__version__}.dist-info"
    told.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        if (text := here.read_text(name)) is not None:
            (told / name).write_text(text, encoding="utf-8")


def _take_file(file: Path, stage: Path) -> None:
    to = stage / file.resolve().name
    if _imported_as(to, folder=file.is_dir()) in {_imported_as(one, folder=one.is_dir()) for one in stage.iterdir()}:
        raise CannotBundle(f"{file} has the name of a module of onceward or its dependencies: rename it")
    if file.is_dir():
        shutil.copytree(file, to, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        shutil.copy(file, to)  # a program stays one


def _imported_as(path: Path, *, folder: bool) -> str:
    """Return the name by which Python imports a module; a file that is none has its own. Of msgspec.py and msgspec/ it takes the folder."""
    return path.name.partition(".")[0] if not folder and path.suffix in {".py", ".so"} else path.name


def _compile(stage: Path, place: str) -> None:
    """Compile every module, in a process whose sets have one order."""
    command = [sys.executable, "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run([*command, "-s", str(stage), "-p", place, str(stage)], env=environment, check=False)


def _write(out: Path, files: list[tuple[str, Path]]) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, path in files:
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.create_system = 3  # the modes are those of Unix
            runs = path.suffix == ".so" or path.stat().st_mode & 0o100
            entry.external_attr = (0o755 if runs else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
