-- The consumer leaves. What it has and never saw (the answer that named it was lost) is handed back as it was.
-- Names without rows go: its own, the one of what is handed back, and those of workers that are long gone.
-- KEYS: stream. ARGV: group, consumer, the name of what is handed back, milliseconds that make a worker long gone.
local stream, group, me, back = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
for _, pending in ipairs(redis.call('XPENDING', stream, group, '-', '+', 1000, me)) do
  redis.call('XCLAIM', stream, group, back, 0, pending[1], 'RETRYCOUNT', math.max(pending[4] - 1, 0), 'JUSTID')
end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local facts = {}
  for place = 1, #consumer, 2 do
    facts[consumer[place]] = consumer[place + 1]
  end
  local ours = string.sub(facts.name, 1, 6) == 'abide-' and facts.idle > tonumber(ARGV[4])
  if facts.pending == 0 and (ours or facts.name == me or facts.name == back) then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, facts.name)
  end
end
return 0
