import pytest

from tools import Shop


@pytest.fixture(params=["sdk", "fastmcp"])
def shop(request):
    return Shop(request.param)
