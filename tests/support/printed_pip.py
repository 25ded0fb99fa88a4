"""``pip install`` for pages that are run as printed: it checks that what they name is installed here."""

import sys
from importlib.metadata import PackageNotFoundError, distributions, metadata, requires

from packaging.requirements import Requirement

from servers.ministack import ministack


def check(named: str) -> None:
    """Exit unless the package is installed, with all that its extras need."""
    wanted = Requirement(named)
    if wanted.name == "ministack":  # it has a folder of its own
        assert any(found.metadata["Name"] == "ministack" for found in distributions(path=[str(ministack())]))
        return
    try:
        extras = metadata(wanted.name).get_all("Provides-Extra") or []
    except PackageNotFoundError:
        sys.exit(f"pip: {wanted.name} is not installed for the tests")
    if unknown := wanted.extras - set(extras):
        sys.exit(f"pip: {wanted.name} has no extra {', '.join(unknown)}")
    for line in requires(wanted.name) or []:
        needed = Requirement(line)
        if needed.marker and any(needed.marker.evaluate({"extra": extra}) for extra in wanted.extras):
            check(str(Requirement(line.partition(";")[0])))


if __name__ == "__main__":
    verb, *named = sys.argv[1:]
    assert verb == "install", "pages only install"
    for one in named:
        if not one.startswith("-"):
            check(one)
