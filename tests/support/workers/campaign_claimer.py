"""Claims each message's key at one of several services, makes its effect, and completes it (campaign_caller.py)."""

import json
import os
import random
import secrets
import time

from campaign_caller import GIVEN, run

JOURNAL = os.open(GIVEN["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
JSON = {"Content-Type": "application/json"}


def claim(number, ask):
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
    run(claim)
