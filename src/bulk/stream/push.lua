-- Adds rows, all or none. KEYS: stream. ARGV: the names of the two fields, then rows, each with its seed.
-- Returns the place of the last.
local last
for place = 3, #ARGV, 2 do
  last = redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[place], ARGV[2], ARGV[place + 1])
end
return last
