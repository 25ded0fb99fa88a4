"""``onceward package lambda``: onceward, its dependencies and a handler as one zip."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from onceward import terminal
from onceward.cli.bundle import MACHINES, PYTHONS, CannotBundle, LambdaTarget, bundle
from onceward.cli.ledgers import TROUBLE, USAGE, JsonOption, refuse

_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"

package = typer.Typer(
    name="package",
    help="Make an archive to deploy.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@package.callback()
def _callback() -> None:
    pass


FilesArgument = Annotated[
    list[Path] | None,
    Argument(metavar="[FILE]...", help="Your handler: files and folders, placed at the top of the zip."),
]
LayerOption = Annotated[
    bool, Option("--layer", help="Make a layer, which several functions can use. It holds no handler.")
]
OutOption = Annotated[
    Path | None, Option(metavar="ZIP", help="Where to write. The default is onceward-lambda.zip or onceward-layer.zip.")
]
ExtraOption = Annotated[
    list[str] | None,
    Option(metavar="NAME", help="Add an extra, such as postgres. Give it once for each. Lambda itself has botocore."),
]
PythonOption = Annotated[str, Option(metavar="X.Y", help="The Python of the function.")]
ArchOption = Annotated[str, Option(metavar="M", help="The architecture of the function: x86_64 or arm64.")]

BytecodeOption = Annotated[
    bool,
    Option(
        "--bytecode", help="Add compiled modules: a cold start is faster, the zip larger. Needs the Python of --python."
    ),
]


@package.command("lambda")
def lambda_(
    files: FilesArgument = None,
    layer: LayerOption = False,
    out: OutOption = None,
    extra: ExtraOption = None,
    python: PythonOption = _HERE,
    arch: ArchOption = "x86_64",
    bytecode: BytecodeOption = False,
    json: JsonOption = False,
) -> None:
    """Make the zip of an AWS Lambda function or layer: this version of onceward, its dependencies, and your files.

    pip gets the dependencies as wheels for Lambda, so the zip can be made on any machine. The command line, the dashboard and
    the test kit are left out. The same versions and files always give the same bytes.
    """
    if python not in PYTHONS:
        refuse(f"--python {python}: give one of {', '.join(PYTHONS)}", USAGE)
    if arch not in MACHINES:
        refuse(f"--arch {arch}: give one of {', '.join(MACHINES)}", USAGE)
    if bytecode and python != _HERE:
        refuse(f"--bytecode is for the Python that runs this command, {_HERE}: run it on Python {python}", USAGE)
    if layer and files:
        refuse("a layer holds no handler: leave out the files, or leave out --layer", USAGE)
    out = out or Path("onceward-layer.zip" if layer else "onceward-lambda.zip")
    try:
        with tempfile.TemporaryDirectory(prefix="onceward-package-") as stage:
            made = bundle(out, LambdaTarget(python, arch, layer, bytecode), extra or [], files or [], Path(stage))
    except (CannotBundle, OSError) as error:
        refuse(str(error), TROUBLE)
    if json:
        typer.echo(terminal.json(made._asdict()))
        return
    typer.echo(
        f"{terminal.line(made.path)}: {made.zipped / 1e6:.2f} MB, unzipped {made.unzipped / 1e6:.2f} MB, for Python {python} on {arch}"
    )
