"""Sends each message to one of several servers until ``handle(number, ask)`` returns its receipt; its one argument is JSON (faults/campaign.py)."""

import http.client
import json
import os
import random
import secrets
import sys
import threading
import time
import traceback
from pathlib import Path

TIMEOUT = 20.0  # seconds that a client waits; it gives some up much earlier
MISTAKE = "mistake"  # begins a line of the receipts that says that something is wrong
GIVEN = json.loads(sys.argv[1])
JOURNAL = os.open(GIVEN.get("journal", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
JSON = {"Content-Type": "application/json"}


class Sender(threading.Thread):
    def __init__(self, handle, left, receipts):
        super().__init__(daemon=True)
        self._handle, self._left, self._receipts = handle, left, receipts
        self._connections = {}

    def run(self):
        while self._left:
            try:
                number = self._left.pop()
            except IndexError:
                return
            try:
                receipt = self._handle(number, self.ask)
            except (OSError, http.client.HTTPException):
                receipt = None
            except Exception:
                os.write(self._receipts, f"{MISTAKE} {traceback.format_exc()!r}\n".encode())
                raise
            if receipt is None:
                self._left.insert(0, number)
                time.sleep(0.1)
            else:
                line = f"{number} {json.dumps(receipt)}\n"
                os.write(self._receipts, line.encode())  # one call: all of it, or nothing

    def ask(self, port, method, path, body, headers):
        timeout = random.choice([TIMEOUT] * 20 + [0.02])  # some replies are lost
        connection = self._connections.pop(port, None) or http.client.HTTPConnection("127.0.0.1", port)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            answer = reply.status, dict(reply.getheaders()), reply.read()
        except BaseException:
            connection.close()
            raise
        self._connections[port] = connection
        return answer


def run(handle):
    file = Path(GIVEN["receipts"])
    whole = file.read_text() if file.exists() else ""
    known = {int(line.split(" ")[0]) for line in whole.split("\n")[:-1] if line[:1].isdecimal()}
    left = [number for number in range(GIVEN["messages"]) if number not in known]
    random.shuffle(left)
    receipts = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if whole and not whole.endswith("\n"):
        os.write(receipts, b"\n")
    while True:
        senders = [Sender(handle, left, receipts) for _ in range(GIVEN["threads"])]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        if not left:
            break
    while True:
        time.sleep(60)  # a crew's process does not end by itself


def pay(number, ask):
    """Send a payment through a proxy."""
    body = json.dumps({"id": number})
    headers = {"Idempotency-Key": f'"payment-{number}"', **JSON}
    status, _, answer = ask(random.choice(GIVEN["ports"]), "POST", "/payments", body, headers)
    if status == 201:
        return json.loads(answer)
    assert status in {409, 500, 502, 503, 504}, (status, answer)
    return None


def claim(number, ask):
    """Claim a message's key at one of several services, make its effect, and complete it."""

    def call(action, body, port=None):
        port = port or random.choice(GIVEN["ports"])
        status, _, answer = ask(port, "POST", f"/v1/campaign/{action}", json.dumps(body), JSON)
        return status, json.loads(answer), port

    def surely(action, body):
        """Ask until there is an answer, of any instance; None after a lease."""
        until = time.monotonic() + GIVEN["lease"]
        while time.monotonic() < until:
            try:
                status, answer, _ = call(action, body)
            except (OSError, ValueError):
                time.sleep(0.05)
                continue
            if status not in {500, 503}:
                return status, answer
        return None

    name, key = secrets.token_hex(16), f"payment-{number}"
    since = time.monotonic()
    asked = {"key": key, "id": name, "input": number, "lease": GIVEN["lease"], "derive": ["bank"]}
    status, found, port = call("claim", asked)
    if status == 200:
        return found["result"]
    if status != 201:
        assert status in {409, 410, 503}, (status, found)
        return None
    held = {"key": key, "id": name, "fence": found["fence"]}
    lot = random.random()
    if lot < 0.1:  # its reply was lost, it thinks; another instance says the same
        again = surely("claim", asked)
        if again is not None and (again[0] == 200 or (again[0] == 201 and again[1]["fence"] != found["fence"])):
            # Its lease was over, and somebody else has had the key since.
            assert time.monotonic() - since > found["lease"] * 0.9, (found, again)
            assert again[0] == 200 or again[1]["fence"] > found["fence"], (found, again)
            return None
        assert again is None or again[0] in {201, 409, 410, 422}, again
    elif lot < 0.15:  # its id is for one key only; the instance remembers that until it is killed
        other = call("claim", {**asked, "key": "another"}, port)
        noted("refused" if other[0] == 422 else "forgotten")
        if other[0] == 201:
            surely("release", {"key": "another", "id": name, "fence": other[1]["fence"]})
    if time.monotonic() - since > found["lease"] / 2:
        return None  # its lease may be over before its effect is made
    os.write(JOURNAL, f"effect {number} {found['fence']} {found['keys']['bank']} {name}\n".encode())
    receipt = {"id": number, "by": found["keys"]["bank"]}
    done = surely("complete", {**held, "result": receipt})
    if random.random() < 0.1:
        done = surely("complete", {**held, "result": receipt})  # as above
    return receipt if done is not None and done[0] == 200 else None


def noted(what):
    os.write(JOURNAL, f"{what}\n".encode())


if __name__ == "__main__":
    run(claim if "journal" in GIVEN else pay)
