-- Rows that are about to be sent and are not safe to repeat: whoever takes them over is to know.
-- KEYS: stream. ARGV: group, consumer, then entries, each with its deliveries.
-- Returns the entries that another worker has by now.
local stream, group, me = KEYS[1], ARGV[1], ARGV[2]
local lost = {}
for place = 3, #ARGV, 2 do
  local entry = ARGV[place]
  if redis.call('XPENDING', stream, group, entry, entry, 1, me)[1] then
    redis.call('XCLAIM', stream, group, me, 0, entry, 'RETRYCOUNT', ARGV[place + 1], 'JUSTID')
  else
    lost[#lost + 1] = entry
  end
end
return lost
