import pytest

from commands.mcp_tools import Shop


@pytest.fixture(params=["sdk", "fastmcp"])
def shop(request):
    return Shop(request.param)
