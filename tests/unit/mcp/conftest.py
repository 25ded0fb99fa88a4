import pytest

from commands.mcp_tools import Shop
from onceward import Once


@pytest.fixture(params=["sdk", "fastmcp"])
def shop(request):
    return Shop(request.param)


@pytest.fixture
def once():
    return Once("memory:", name="shop")
