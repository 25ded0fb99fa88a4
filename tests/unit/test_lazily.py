"""Names of a package that are imported on first use, and a library of its extra that is missing."""

import importlib

import pytest


def test_a_missing_library_of_an_extra_is_told_with_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "toykit").mkdir()
    (tmp_path / "toykit" / "inner.py").write_text("import toylib\n")
    (tmp_path / "toykit" / "other.py").write_text("import toyelse\n")
    (tmp_path / "toykit" / "__init__.py").write_text(
        "from onceward.lazily import lazily\n"
        "homes = {'.inner': ('charge',), '.other': ('refund',)}\n"
        "__getattr__, __dir__ = lazily(__name__, homes, needs=('toylib',))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    toykit = importlib.import_module("toykit")
    with pytest.raises(ModuleNotFoundError, match=r"toykit needs toylib: pip install 'onceward\[toykit\]'"):
        toykit.charge
    with pytest.raises(ModuleNotFoundError, match="No module named 'toyelse'"):
        toykit.refund
    with pytest.raises(AttributeError, match="module 'toykit' has no attribute 'chrge'"):
        toykit.chrge
