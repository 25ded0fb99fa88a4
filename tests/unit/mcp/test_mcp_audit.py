"""What the audit says of an action of ``onceward mcp`` whose outcome nobody knows."""

import pytest

from onceward import Once
from onceward.cli.mcp_tools import ToolError, _Tools
from onceward.errors import StoreError
from onceward.stores.audit import entries_of


def test_an_action_whose_reply_was_lost_is_not_told_as_failed(monkeypatch):
    once = Once("memory:")
    once.acquire("a", name="shop").park("x")
    swap = once.store.swap

    def lost(*arguments):
        yield from swap(*arguments)
        raise StoreError("the reply was lost")

    with monkeypatch.context() as patched:
        patched.setattr(once.store, "swap", lost)
        with pytest.raises(ToolError, match="the reply was lost"):
            _Tools(once, payloads=False).unpark("shop:a", "the cause is fixed")
    (entry,) = entries_of(once.ledger, "shop:a")
    assert entry.end is None
    assert once.ledger.show("shop:a")[0].status == "RELEASED"
