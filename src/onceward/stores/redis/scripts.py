"""The Lua scripts of the verbs. Each reads the server's clock once, and touches the Redis keys of one shard only.

A record is a hash with the fields of ``core/record.py``; a field that is None is not there. HSET is the first write of each
script, because Redis then checks its memory limit: after it, nothing of a script is refused. The verbs take and give MessagePack:
one argument and one answer cost a client far less than thirty.
"""

from collections.abc import Iterable
from hashlib import sha1
from typing import Final

from onceward.core.protocol import NEEDS, STATUSES
from onceward.core.record import IN_PROGRESS
from onceward.core.views import SOME_DAY
from onceward.stores.redis.names import INDEXES
from onceward.stores.survey import UNFINISHED

NUMBERS: Final = ("fence", "beat", "attempts", "lease_until", "created_at")  # each record has them
BELL: Final = 2000  # milliseconds for which a bell waits for who was late


class Script:
    """A script, and how Redis calls it."""

    def __init__(self, *parts: str) -> None:
        self.text = "".join(parts).encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()


INDEX: Final = {name: number for number, name in enumerate(INDEXES, 4)}  # the place in KEYS
_INDEX: Final = {name: f"KEYS[{number}]" for name, number in INDEX.items()}
_UNFINISHED: Final = sorted(UNFINISHED)  # the text of a script is the same in each process
_FIRST: Final = """
local t = redis.call('TIME')
local stamp = t[1] .. string.format('.%06d', tonumber(t[2]))
local now = tonumber(stamp)
local function hash(name)
  local flat = redis.call('HGETALL', name)
  if #flat == 0 then return nil end
  local h = {}
  for i = 1, #flat, 2 do h[flat[i]] = flat[i + 1] end
  return h, flat
end
"""
_WHOLE: Final = (
    "local function is_whole(h)\n"
    f"  return h.key and h.status and h.owner and {' and '.join(f'tonumber(h.{name})' for name in NUMBERS)}\n"
    "    and (not h.expires_at or tonumber(h.expires_at))\nend\n"
)


def _set(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"['{name}'] = true" for name in sorted(names)) + "}"


# A status or a need that this version does not know may mean that the record is still needed.
_KNOWN: Final = f"""
local NEEDS, STATUSES = {_set(NEEDS)}, {_set(STATUSES)}
local function is_known(h)
  for need in (h.needs or ''):gmatch('%S+') do if not NEEDS[need] then return false end end
  return STATUSES[h.status]
end
"""
_INDEXED: Final = f"""
local function untrace(key)
  local root = redis.call('HGET', {_INDEX["roots"]}, key)
  if root then
    redis.call('ZREM', {_INDEX["origins"]}, root .. '\\0' .. key)
    redis.call('HDEL', {_INDEX["roots"]}, key)
  end
end
local function ring()
  local waiting = tonumber(redis.call('GET', KEYS[2]) or '0')
  if waiting == 0 then return end
  redis.call('DEL', KEYS[2])
  for _ = 1, math.min(waiting, 1000) do redis.call('RPUSH', KEYS[3], '1') end
  redis.call('PEXPIRE', KEYS[3], {BELL})
end
local function unlist(key)
  for _, index in ipairs({{{", ".join(_INDEX[name] for name in ("ends", *_UNFINISHED, "due", "unsent"))}}}) do
    redis.call('ZREM', index, key)
  end
  untrace(key)
end
"""
_FORGET: Final = f"""
local function forget(record, key)
  redis.call('DEL', record)
  redis.call('ZREM', {_INDEX["keys"]}, key)
  unlist(key)
end
"""
# The argument of a write, which a client has made from the record that it has seen, so that nothing here knows a status. See `records.py`.
_ARGUMENT: Final = "local a = cmsgpack.unpack(ARGV[1])\n"
_SAVED: Final = f"""
local flat, key, fence, least, lease, till, keep, due, is_new, gone, out, into, root, rings, expiry, owner = unpack(a, 1, 16)
local function time(at) return string.format('%.6f', at) end
local n = #flat
local function put(name, value)
  flat[n + 1], flat[n + 2] = name, value
  n = n + 2
end
if least then
  local before = tonumber(redis.call('GET', {_INDEX["fence"]}) or '0')
  fence = string.format('%.0f', math.max(least, before + 1, tonumber(t[1]) * 1000000 + tonumber(t[2])))
end
local ends = math.max(now + lease, till)
local lease_until, expires_at, due_at = time(ends), keep and time(ends + keep), due and time(now + due)
put('fence', fence)
put('lease_until', lease_until)
put('updated_at', stamp)
if keep then put('expires_at', expires_at) end
if due then put('due_at', due_at) end
if is_new then put('created_at', stamp) end
redis.call('HSET', KEYS[1], unpack(flat))
if least then redis.call('SET', {_INDEX["fence"]}, fence) end
if gone then redis.call('HDEL', KEYS[1], unpack(gone)) end
if not owner and redis.call('ZADD', {_INDEX["keys"]}, 0, key) == 0 then unlist(key) end
for _, index in ipairs(out) do redis.call('ZREM', KEYS[index], key) end
for _, index in ipairs(into) do redis.call('ZADD', KEYS[index], 0, key) end
if keep then redis.call('ZADD', {_INDEX["ends"]}, expires_at, key) end
if due then redis.call('ZADD', {_INDEX["due"]}, due_at, key) end
if root ~= nil then
  untrace(key)
  if root then
    redis.call('HSET', {_INDEX["roots"]}, key, root)
    redis.call('ZADD', {_INDEX["origins"]}, 0, root .. '\\0' .. key)
  end
end
if rings then ring() end
if expiry == true then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(tonumber(expires_at) * 1000)))
elseif expiry == false then redis.call('PERSIST', KEYS[1]) end
return cmsgpack.pack({{1, stamp, fence, lease_until, expires_at or '', due_at or ''}})
"""
# A duplicate ends first, for a script pays for each function that it defines.
INSERT: Final = Script(
    _FIRST,
    _ARGUMENT,
    """
local h = hash(KEYS[1])
if h then return cmsgpack.pack({0, stamp, h}) end
""",
    _INDEXED,
    _SAVED,
)
# a[16] to a[18]: the version seen
SWAP: Final = Script(
    _FIRST,
    _ARGUMENT,
    """
local function is(name, text) return redis.call('HGET', KEYS[1], name) == text end
if not (is('owner', a[16]) and is('fence', a[17]) and is('beat', a[18])) then return cmsgpack.pack({0, stamp, (hash(KEYS[1]))}) end
""",
    _INDEXED,
    _SAVED,
)
LOAD: Final = Script(_FIRST, "return cmsgpack.pack({0, stamp, (hash(KEYS[1]))})")
# ARGV: the key, and all that was seen, or the version
DELETE: Final = Script(
    _FIRST,
    _INDEXED,
    _FORGET,
    """
local h = hash(KEYS[1])
if not h then return cmsgpack.pack({0, stamp}) end
for i = 2, #ARGV, 2 do if h[ARGV[i]] ~= ARGV[i + 1] then return cmsgpack.pack({0, stamp, h}) end end
forget(KEYS[1], ARGV[1])
ring()
return cmsgpack.pack({1, stamp})
""",
)
# KEYS[1]: the meta hash; ARGV: our version
PREPARE: Final = Script(
    _FIRST,
    """
if redis.call('HSETNX', KEYS[1], 'version', ARGV[1]) == 1 then redis.call('HSET', KEYS[1], 'created_at', stamp) end
return redis.call('HGETALL', KEYS[1])
""",
)
READ_HASH: Final = Script("return redis.call('HGETALL', KEYS[1])")

# --- for people: KEYS are those of a verb, and KEYS[1] is what the Redis key of a record begins with ------------------------

# ARGV: offset, limit
PURGE: Final = Script(
    _FIRST,
    _WHOLE,
    _INDEXED,
    _FORGET,
    _KNOWN,
    f"""
local gone, stay, damaged = 0, 0, {{}}
local names = redis.call('ZRANGEBYSCORE', {_INDEX["ends"]}, '-inf', stamp, 'LIMIT', ARGV[1], ARGV[2])
for _, key in ipairs(names) do
  local record = KEYS[1] .. key
  local h, flat = hash(record)
  if not h then forget(record, key)
  elseif not is_whole(h) then
    damaged[#damaged + 1] = {{key, flat}}
    stay = stay + 1
  elseif is_known(h) and h.expires_at and tonumber(h.expires_at) <= now and tonumber(h.lease_until) <= now then
    forget(record, key)
    gone = gone + 1
  else stay = stay + 1 end
end
return {{gone, stay, damaged}}
""",
)
EXPIRED: Final = Script(_FIRST, f"return redis.call('ZCOUNT', {_INDEX['ends']}, '-inf', stamp)")
# KEYS[1]: what records begin with, KEYS[2]: an index by name. ARGV: from, to, limit, what a name begins with before the key
PAGE: Final = Script(
    _FIRST,
    """
local found = {}
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local key = name:sub(#ARGV[4] + 1)
  local _, flat = hash(KEYS[1] .. key)
  found[#found + 1] = {key, flat or {}}
end
return {stamp, found}
""",
)
# ARGV: due_at and key of the last one, limit, seconds to look ahead. Lua compares texts by the server's locale, so bytes are compared here.
DUE: Final = Script(
    _FIRST,
    f"""
local function is_after(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x > y end
  end
  return #a > #b
end
local index, last, limit, offset, found = {_INDEX["due"]}, tonumber(ARGV[1]), tonumber(ARGV[3]), 0, {{}}
local till = string.format('%.6f', now + tonumber(ARGV[4]))
repeat
  local names = redis.call('ZRANGEBYSCORE', index, ARGV[1], till, 'WITHSCORES', 'LIMIT', offset, limit)
  for i = 1, #names, 2 do
    if #found < limit and (tonumber(names[i + 1]) > last or is_after(names[i], ARGV[2])) then
      local h, flat = hash(KEYS[1] .. names[i])
      found[#found + 1] = {{names[i], flat or {{}}, names[i + 1]}}
    end
  end
  offset = offset + limit
until #found >= limit or #names < 2 * limit
local later = redis.call('ZRANGEBYSCORE', index, '(' .. till, string.format('(%.6f', now + {SOME_DAY}), 'WITHSCORES', 'LIMIT', 0, 1)
return {{stamp, found, later[2] or ''}}
""",
)
_SOON: Final = f"string.format('(%.6f', now + {SOME_DAY})"
SURVEY: Final = Script(
    _FIRST,
    f"""
local due, claims, lapsed = {_INDEX["due"]}, redis.call('ZRANGEBYLEX', {_INDEX["IN_PROGRESS"]}, '-', '+'), 0
for _, key in ipairs(claims) do
  if (tonumber(redis.call('HGET', KEYS[1] .. key, 'lease_until') or '') or math.huge) <= now then lapsed = lapsed + 1 end
end
return {{stamp, redis.call('ZCARD', {_INDEX["keys"]}), redis.call('ZCOUNT', {_INDEX["ends"]}, '-inf', stamp),
  #claims, redis.call('ZCARD', {_INDEX["RELEASED"]}), redis.call('ZCARD', {_INDEX["PARKED"]}), lapsed,
  redis.call('ZCOUNT', due, '-inf', {_SOON}), redis.call('ZCARD', due)}}
""",
)
# ARGV: the most milliseconds to wait. Returns how many to wait for the bell: until the lease ends, or 0 if nobody holds the key.
WAITING: Final = Script(
    _FIRST,
    f"""
local h = hash(KEYS[1])
if not h or h.status ~= '{IN_PROGRESS}' or not tonumber(h.lease_until) then return 0 end
local left = math.min(tonumber(ARGV[1]), math.ceil((tonumber(h.lease_until) - now) * 1000))
if left <= 0 then return 0 end
redis.call('INCR', KEYS[2])
redis.call('PEXPIRE', KEYS[2], left + {BELL})
return left
""",
)
