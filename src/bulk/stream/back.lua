-- Hands rows back that are still this consumer's.
-- KEYS: stream. ARGV: group, consumer, the name of what is handed back, then entries, each with its deliveries.
local stream, group, me, back = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
for place = 4, #ARGV, 2 do
  local entry = ARGV[place]
  if redis.call('XPENDING', stream, group, entry, entry, 1, me)[1] then
    redis.call('XCLAIM', stream, group, back, 0, entry, 'RETRYCOUNT', ARGV[place + 1], 'JUSTID')
  end
end
return 0
