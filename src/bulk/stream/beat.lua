-- A sign of life: rows that are still this consumer's are claimed anew.
-- KEYS: stream. ARGV: group, consumer, entries. Returns the entries that another worker has by now.
local stream, group, me = KEYS[1], ARGV[1], ARGV[2]
local lost = {}
for place = 3, #ARGV do
  local entry = ARGV[place]
  if redis.call('XPENDING', stream, group, entry, entry, 1, me)[1] then
    redis.call('XCLAIM', stream, group, me, 0, entry, 'JUSTID')
  else
    lost[#lost + 1] = entry
  end
end
return lost
