import pytest

from stage import Both, Stage


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture(params=["sync", "async"])
def face(request):
    return Both(request.param == "async")
