"""What Redis does in one step with the pending entries of a group. Each script touches one stream, so a Cluster runs it, too."""

from typing import Final

# ARGV: group, consumer, milliseconds that the entries then seem idle, ids. Returns the ids that are still this consumer's.
RENEW: Final = """
local mine = {}
for place = 4, #ARGV do
  local id = ARGV[place]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'IDLE', ARGV[3], 'JUSTID')
    mine[#mine + 1] = id
  end
end
return mine
"""

# ARGV: group, consumer, ids. Returns id, fields and receives of the entries that are still this consumer's, as received again.
AGAIN: Final = """
local found = {}
for place = 3, #ARGV do
  local id = ARGV[place]
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2])
  if #pending > 0 then
    local entry = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)[1]
    found[#found + 1] = {id, entry and entry[2] or false, pending[1][4] + 1}
  end
end
return found
"""

# ARGV: group, consumer, milliseconds, where to begin, how many. Returns where to go on, entries as above, and ids that are gone.
CLAIM: Final = """
local answer = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local found = {}
for _, entry in ipairs(answer[2]) do
  if entry and entry[2] then
    local pending = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)
    found[#found + 1] = {entry[1], entry[2], pending[1][4]}
  end
end
return {answer[1], found, answer[3] or {}}
"""

# ARGV: group, the beginning of names, milliseconds. A consumer that is deleted with pending entries would lose them.
FORGET: Final = """
for _, told in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local one = {}
  for place = 1, #told, 2 do one[told[place]] = told[place + 1] end
  local named = string.sub(one['name'], 1, #ARGV[2]) == ARGV[2]
  if named and one['pending'] == 0 and one['idle'] >= tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], one['name'])
  end
end
"""
