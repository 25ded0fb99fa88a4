"""The decision table of ``core/protocol.py`` in Lua, and what a claim that replaces a record has in its fields.

Both are printed from the protocol's own tables. A test compares them with the protocol over random records.
"""

from collections.abc import Iterable
from typing import Final

from onceward.core import conditions, history
from onceward.core.protocol import FREE, NEEDS, RULES, STATUSES, UNKNOWN_NEEDS, Rule, Verdict
from onceward.core.record import IN_PROGRESS
from onceward.core.writes import FOLLOWING, LAPSED, Becomes, Following

# `h` is the record, a table of texts; `own` is the claim. A comparison with nil does not hold, as in the protocol.
_CONDITIONS: Final[dict[conditions.Condition, str]] = {
    UNKNOWN_NEEDS: "has_unknown_needs(h)",
    conditions.MINE: "h.owner == own.owner",
    conditions.EXPIRED: "h.expires_at and tonumber(h.expires_at) <= now",
    conditions.LEASE_OVER: "tonumber(h.lease_until) <= now",
    conditions.LEASE_LIVE: "tonumber(h.lease_until) > now",
    conditions.DIFFERS: "h.fingerprint and own.fingerprint and h.fingerprint ~= own.fingerprint",
    conditions.PARKS_LAPSED: "on_lapse == 'park'",
    conditions.USED_UP: "max_attempts and tonumber(h.attempts) >= max_attempts",
}


def _table(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"['{name}'] = true" for name in sorted(names)) + "}"


_HISTORY: Final = f"""
local function is_open(h)
  local mark = '"fence":' .. h.fence
  return h.history ~= nil and h.history:sub(-#mark) == mark
end
local function milliseconds(at)
  return at and string.format('%.0fe-3', tonumber(at) * 1000) or 'null'
end
local function tail(text, most)
  if not text or #text <= most then return text or '' end
  local rest = text:sub(-most)
  local line = rest:find('\\n', 1, true)
  return line and rest:sub(line) or ''
end
local function lapsed_history(h)
  local head, worker, trace = '', 'null', ''
  if not is_open(h) then
    local begin = nil
    if tonumber(h.beat) == 0 then begin = h.updated_at
    elseif tonumber(h.beat) > 0 and tonumber(h.attempts) == 1 then begin = h.created_at end
    head = '\\n{{"begin":' .. milliseconds(begin) .. ',"fence":' .. h.fence
  end
  if h.worker then
    local count, cut = 0, #h.worker
    for at in h.worker:gmatch('()[^\\128-\\191]') do
      count = count + 1
      if count > {history.LONGEST_WORKER} then cut = at - 1 break end
    end
    worker = '"' .. h.worker:sub(1, cut):gsub('\\\\', '\\\\\\\\'):gsub('"', '\\\\"') .. '"'
  end
  if h.trace and #h.trace == {history.TRACE} then trace = ',"trace":"' .. h.trace .. '"' end
  return tail(h.history, {history.MOST - history.LINE}) .. head .. ',"attempt":' .. h.attempts .. ',"worker":' .. worker
    .. ',"outcome":"{history.LAPSED}"' .. trace .. '}}'
end
local function closed_history(h)
  return is_open(h) and h.history .. ',"end":' .. milliseconds(h.lease_until) .. '}}' or h.history
end
"""

_MADE: Final[dict[Becomes, str]] = {
    Becomes.OWN: "own.{field}",
    Becomes.KEPT: "h.{field}",
    Becomes.NEXT: "string.format('%.0f', tonumber(h.{field}) + 1)",
    Becomes.LAPSED: f"'{LAPSED[0]}' .. h.attempts .. '{LAPSED[1]}'",
    Becomes.ADDED: "lapsed_history(h)",
    Becomes.CLOSED: "closed_history(h)",
}


def _holds(rule: Rule) -> str:
    terms = [f"({_CONDITIONS[condition]})" for condition in rule.conditions]
    if rule.statuses is not None:
        known = f"({_table(rule.statuses or STATUSES)})[h.status]"
        terms.insert(0, f"({known})" if rule.statuses else f"(not {known})")
    return " and ".join(terms) or "true"


def _following(row: Following) -> str:
    fresh, lapsed, given_back = (_MADE[one].format(field=row.field) for one in (row.fresh, row.lapsed, row.given_back))
    again = f"if h.status == '{IN_PROGRESS}' then w.{row.field} = {lapsed} else w.{row.field} = {given_back} end"
    return f"  if fresh then w.{row.field} = {fresh} else {again} end"


# `has_unknown_needs(h)`, `is_known(h)`, `verdict(h, own, on_lapse, max_attempts)`, and the set FREE
JUDGING: Final = (
    f"local NEEDS, STATUSES = {_table(NEEDS)}, {_table(STATUSES)}\n"
    f"local FREE = {_table(one.name for one in FREE)}\n"
    "local function has_unknown_needs(h)\n"
    "  for need in (h.needs or ''):gmatch('%S+') do if not NEEDS[need] then return true end end\n"
    "  return false\nend\n"
    "local function is_known(h) return STATUSES[h.status] and not has_unknown_needs(h) end\n"
    "local function verdict(h, own, on_lapse, max_attempts)\n"
    + "".join(f"  if {_holds(rule)} then return '{rule.verdict.name}' end\n" for rule in RULES)
    + "end\n"
)
# `follow(w, h, own, verdict)`
TAKING: Final = (
    f"{_HISTORY}"
    "local function follow(w, h, own, verdict)\n"
    f"  local fresh = verdict == '{Verdict.START.name}'\n" + "\n".join(map(_following, FOLLOWING)) + "\nend\n"
)
