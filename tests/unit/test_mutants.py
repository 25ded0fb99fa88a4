"""The planted defects of ``make mutants`` fit the code: it runs them too seldom to tell."""

import ast
from pathlib import Path

from mutants.defects import DEFECTS
from places import ROOT
from tables import each


@each("defect", DEFECTS)
def test_a_defect_can_be_planted_and_names_tests_that_are_there(defect):
    ast.parse(defect.planted(Path(ROOT, "src/onceward", defect.file).read_text()))
    assert all(Path(ROOT, "tests", test.partition("::")[0]).exists() for test in defect.tests.split())


def test_each_invariant_has_a_defect():
    assert {defect.invariant for defect in DEFECTS} - {0} == set(range(1, 11))
