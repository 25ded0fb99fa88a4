"""``onceward proxy`` as a process that is told to stop."""

import contextlib
import time

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from web.answering import Answering
from web.servers import keyed, serving


def test_a_proxy_told_to_stop_finishes_the_request_under_way(tmp_path):
    store = f"sqlite:///{tmp_path}/ledger.db"
    with contextlib.closing(Answering()) as upstream:
        command = f"onceward proxy --upstream {upstream.url} --name http --scope everybody --port PORT --store {store}"
        with serving(*command.split()) as server:
            upstream.pause = 1.0
            with pytest.raises(TimeoutError):
                server.post("/orders", b"{}", keyed("k"), 0.5)
            while not [path for _, path, _, _ in upstream.came if path == "/orders"]:
                time.sleep(0.05)
            server.process.terminate()
            server.process.wait(60)
    (record,) = (record for record, _ in Once(store).ledger.records())
    assert record.status == COMPLETED
