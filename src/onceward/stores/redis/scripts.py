"""The Lua scripts of the verbs. Each reads the server's clock once, and touches the Redis keys of one shard only.

A record is a hash with the fields of ``core/record.py``; a field that is None is not there. HSET is the first write of each
script, because Redis then checks its memory limit: after it, nothing of a script is refused. The verbs take and give MessagePack:
one argument and one answer cost a client far less than thirty.
"""

from collections.abc import Iterable
from hashlib import sha1
from typing import Final

from onceward.core.protocol import NEEDS, SOME_DAY, STATUSES
from onceward.core.record import COMPLETED, IN_PROGRESS, Record
from onceward.stores.redis.names import INDEXES

NUMBERS: Final = ("fence", "beat", "attempts", "lease_until", "created_at")  # each record has them
BELL: Final = 2000  # milliseconds for which a bell waits for who was late
_OPTIONAL: Final = [
    name for name in Record._fields if name not in {"key", "status", "owner", "updated_at", *NUMBERS}
]  # a write without one removes it


class Script:
    """A script, and how Redis calls it."""

    def __init__(self, name: str, *parts: str) -> None:
        self.name = name
        self.text = "".join(parts).encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()


_INDEX: Final = {name: f"KEYS[{number}]" for number, name in enumerate(INDEXES, 4)}
_UNFINISHED: Final = ("IN_PROGRESS", "RELEASED", "PARKED")
# An own format of numbers: Lua's would round a fence.
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
local OPEN = {{{", ".join(f"['{name}'] = {_INDEX[name]}" for name in _UNFINISHED)}}}
local function trace(key, origin)
  local root = redis.call('HGET', {_INDEX["roots"]}, key)
  if root then
    redis.call('ZREM', {_INDEX["origins"]}, root .. '\\0' .. key)
    redis.call('HDEL', {_INDEX["roots"]}, key)
  end
  if not origin then return end
  local ok, told = pcall(cjson.decode, origin)
  if ok and type(told) == 'table' and type(told.root) == 'string' then
    redis.call('HSET', {_INDEX["roots"]}, key, told.root)
    redis.call('ZADD', {_INDEX["origins"]}, 0, told.root .. '\\0' .. key)
  end
end
local function ring()
  local waiting = tonumber(redis.call('GET', KEYS[2]) or '0')
  if waiting == 0 then return end
  redis.call('DEL', KEYS[2])
  for _ = 1, math.min(waiting, 1000) do redis.call('RPUSH', KEYS[3], '1') end
  redis.call('PEXPIRE', KEYS[3], {BELL})
end
"""
_FORGET: Final = f"""
local function forget(record, key, h)
  redis.call('DEL', record)
  for _, index in ipairs({{{", ".join(_INDEX[name] for name in ("keys", "ends", "leases", *_UNFINISHED, "due", "unsent"))}}}) do
    redis.call('ZREM', index, key)
  end
  trace(key, nil)
end
"""
# The argument of a write: status, owner, fence, beat, attempts, created_at, lease, keep, until, due, key, the texts by name, and
# the version that a swap compares. What is compared with a hash is a text.
_ARGUMENT: Final = "local a = cmsgpack.unpack(ARGV[1])\n"
_SAVED: Final = f"""
local function time(at) return string.format('%.6f', at) end
local function written()
  local w = {{}}
  for name, text in pairs(a[12]) do w[name] = text end
  w.status, w.owner, w.fence, w.beat, w.attempts, w.key = a[1], a[2], a[3], a[4], a[5], a[11]
  local ends = now + a[7]
  if a[9] ~= 0 then ends = math.max(ends, a[9]) end
  w.lease_until = time(ends)
  if a[8] then w.expires_at = time(ends + a[8]) end
  if a[10] then w.due_at = time(now + a[10]) end
  w.created_at = a[6] and time(a[6]) or stamp
  w.updated_at = stamp
  return w
end
local most = nil
local function new_fence(least)
  local before = tonumber(redis.call('GET', {_INDEX["fence"]}) or '0')
  most = math.max(least, before + 1, tonumber(t[1]) * 1000000 + tonumber(t[2]))
  return string.format('%.0f', most)
end
local function save(w, before)
  local flat, key = {{}}, w.key
  for name, value in pairs(w) do
    flat[#flat + 1] = name
    flat[#flat + 1] = value
  end
  redis.call('HSET', KEYS[1], unpack(flat))
  if most then redis.call('SET', {_INDEX["fence"]}, w.fence) end
  local was = {{}}
  if before then
    was = before
    local gone = {{}}
    for _, name in ipairs({{{", ".join(repr(name) for name in _OPTIONAL)}}}) do
      if before[name] and not w[name] then gone[#gone + 1] = name end
    end
    if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
  else
    redis.call('ZADD', {_INDEX["keys"]}, 0, key)
  end
  if w.status ~= was.status then
    if OPEN[was.status] then redis.call('ZREM', OPEN[was.status], key) end
    if OPEN[w.status] then redis.call('ZADD', OPEN[w.status], 0, key) end
  end
  if w.status == '{IN_PROGRESS}' then redis.call('ZADD', {_INDEX["leases"]}, w.lease_until, key)
  elseif was.status == '{IN_PROGRESS}' then
    redis.call('ZREM', {_INDEX["leases"]}, key)
    ring()
  end
  if w.expires_at then redis.call('ZADD', {_INDEX["ends"]}, w.expires_at, key)
  elseif was.expires_at or not before then redis.call('ZREM', {_INDEX["ends"]}, key) end
  if w.due_at then
    redis.call('ZADD', {_INDEX["due"]}, w.due_at, key)
    redis.call('ZADD', {_INDEX["unsent"]}, 0, key)
  elseif was.due_at then
    redis.call('ZREM', {_INDEX["due"]}, key)
    redis.call('ZREM', {_INDEX["unsent"]}, key)
  end
  if w.origin ~= was.origin or not before then trace(key, w.origin) end
  if w.status == '{COMPLETED}' and w.expires_at and not w.unsent then
    redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil(tonumber(w.expires_at) * 1000)))
  elseif was.status == '{COMPLETED}' then
    redis.call('PERSIST', KEYS[1])
  end
  return {{1, stamp, w.fence, w.lease_until, w.created_at, w.expires_at or '', w.due_at or ''}}
end
"""
# A duplicate ends first, for a script pays for each function that it defines.
INSERT: Final = Script(
    "insert",
    _FIRST,
    _ARGUMENT,
    """
local h = hash(KEYS[1])
if h then return cmsgpack.pack({0, stamp, h}) end
""",
    _INDEXED,
    _SAVED,
    """
local w = written()
if w.fence == '0' then w.fence = new_fence(0) end
return cmsgpack.pack(save(w, nil))
""",
)
# a[13] to a[15]: the version seen
SWAP: Final = Script(
    "swap",
    _FIRST,
    _ARGUMENT,
    """
local h = hash(KEYS[1])
if not h or h.owner ~= a[13] or h.fence ~= a[14] or h.beat ~= a[15] then return cmsgpack.pack({0, stamp, h}) end
""",
    _INDEXED,
    _SAVED,
    """
local w = written()
if w.fence ~= h.fence then w.fence = new_fence(tonumber(w.fence)) end
return cmsgpack.pack(save(w, h))
""",
)
LOAD: Final = Script("load", _FIRST, "return cmsgpack.pack({0, stamp, (hash(KEYS[1]))})")
# ARGV: the key, and all that was seen, or the version
DELETE: Final = Script(
    "delete",
    _FIRST,
    _INDEXED,
    _FORGET,
    """
local h = hash(KEYS[1])
if not h then return cmsgpack.pack({0, stamp}) end
for i = 2, #ARGV, 2 do if h[ARGV[i]] ~= ARGV[i + 1] then return cmsgpack.pack({0, stamp, h}) end end
forget(KEYS[1], ARGV[1], h)
ring()
return cmsgpack.pack({1, stamp})
""",
)
# KEYS[1]: the meta hash; ARGV: our version
PREPARE: Final = Script(
    "prepare",
    _FIRST,
    """
if redis.call('HSETNX', KEYS[1], 'version', ARGV[1]) == 1 then redis.call('HSET', KEYS[1], 'created_at', stamp) end
return redis.call('HGETALL', KEYS[1])
""",
)
READ_HASH: Final = Script("hash", "return redis.call('HGETALL', KEYS[1])")

# --- for people: KEYS are those of a verb, and KEYS[1] is what the Redis key of a record begins with ------------------------

# ARGV: offset, limit
PURGE: Final = Script(
    "purge",
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
EXPIRED: Final = Script("expired", _FIRST, f"return redis.call('ZCOUNT', {_INDEX['ends']}, '-inf', stamp)")
# KEYS[1]: what records begin with, KEYS[2]: an index by name. ARGV: from, to, limit, what a name begins with before the key
PAGE: Final = Script(
    "page",
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
    "due",
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
      found[#found + 1] = {{names[i], flat or {{}}}}
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
    "survey",
    _FIRST,
    f"""
local due = {_INDEX["due"]}
return {{stamp, redis.call('ZCARD', {_INDEX["keys"]}), redis.call('ZCOUNT', {_INDEX["ends"]}, '-inf', stamp),
  redis.call('ZCARD', {_INDEX["IN_PROGRESS"]}), redis.call('ZCARD', {_INDEX["RELEASED"]}), redis.call('ZCARD', {_INDEX["PARKED"]}),
  redis.call('ZCOUNT', {_INDEX["leases"]}, '-inf', stamp),
  redis.call('ZCOUNT', due, '-inf', {_SOON}), redis.call('ZCARD', due)}}
""",
)
# ARGV: the most milliseconds to wait. Returns how many to wait for the bell: until the lease ends, or 0 if nobody holds the key.
WAITING: Final = Script(
    "waiting",
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
