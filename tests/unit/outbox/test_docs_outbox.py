"""The examples of docs/reference/outbox.md run as they are printed."""

import json
import re

from onceward.outbox import sender
from places import DOCS
from web.scripted import Server, serve

TEXT = (DOCS / "reference" / "outbox.md").read_text(encoding="utf-8")


def test_the_examples_send_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {}
    with Server(serve(b"HTTP/1.1 204 No Content\r\n\r\n")) as hooks:
        text = re.sub(r"https://\w+\.example", hooks.url, TEXT)
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(block, space)
        assert sender.SENDER.drain(20) == 0
    posted = [(head.split(" ")[1], json.loads(content)) for head, content in hooks.requests]
    assert sorted(body["order"] for path, body in posted if path == "/orders") == [7, 7, 8]
    assert [body["to"] for path, body in posted if path == "/send"] == ["a@example.com", "b@example.com"]
    assert list(space["once"].ledger.records(status=["UNSENT", "REFUSED"])) == []
    space["connection"].close()
    space["once"].close()
