"""The Lua of the scripts decides about random records as the protocol does."""

import json

from onceward.stores.redis import rules
from random_records import FIELDS, cases, check

_SCRIPT = (
    "local now\n"
    + rules.JUDGING
    + rules.TAKING
    + """
local told = {}
for _, case in ipairs(cjson.decode(ARGV[1])) do
  now = tonumber(case.now)
  if not case.h then told[#told + 1] = {own = case.own, free = false}
  else
    local found = verdict(case.h, case.own, case.on_lapse, tonumber(case.max_attempts))
    local w = {}
    for name, value in pairs(case.own) do w[name] = value end
    if FREE[found] then follow(w, case.h, case.own, found) end
    told[#told + 1] = {verdict = found, own = w, free = FREE[found] or false}
  end
end
return cjson.encode(told)
"""
)
_NUMBERS = {"fence": int, "attempts": int, "created_at": float}


def lowered(case):
    """Return the case with a fence to which a number of Lua can add one."""
    held = case.held
    history = held.history and held.history.replace(str(held.fence), str(2**53 - 1))
    return case._replace(held=held._replace(fence=2**53 - 1, history=history))


def texts(fields):
    """Return what a hash has of these fields."""
    return {
        name: f"{value:.6f}" if isinstance(value, float) else str(value)
        for name, value in fields.items()
        if value is not None
    }


def test_redis_decides_as_the_protocol_does(redis):
    made = [case if case.held is None or case.held.fence < 2**53 else lowered(case) for case in cases(8_000, seed=5)]
    asked = []
    for case in made:
        policy = case.claim.taking
        own = texts({name: getattr(case.claim, name) for name in (*FIELDS, "owner", "fingerprint")})
        one = {"now": case.now, "own": own, "on_lapse": policy.on_lapse, "max_attempts": policy.max_attempts or ""}
        asked.append(one if case.held is None else one | {"h": texts(case.held._asdict())})
    with redis.client() as client:
        told = json.loads(client.eval(_SCRIPT, 0, json.dumps(asked)))
    rows = []
    for one in told:
        values = [one["own"].get(name) for name in FIELDS]
        read = [
            None if text is None else _NUMBERS.get(name, str)(text) for name, text in zip(FIELDS, values, strict=True)
        ]
        rows.append((one.get("verdict"), *read, one["free"]))
    check(made, rows)
