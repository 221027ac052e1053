-- Rows of a group that nobody works on: those that were handed back, then those whose worker gave no sign of life.
-- KEYS: stream. ARGV: group, consumer, most, idle milliseconds (-1: none of the dead), the name of what is handed back,
-- where to go on among the claimed rows (-: at their start).
-- Others wait for the store meanwhile: it looks at 1,000 claimed rows at most.
-- Returns where to go on (nil: it came to the end), and of each row: entry, milliseconds since it was last claimed,
-- deliveries before this one, fields.
local stream, group, me, most, idle = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local from, looks, found = ARGV[6], 1000, {}
local function take(pending)
  local claimed = redis.call('XCLAIM', stream, group, me, 0, pending[1])
  if claimed[1] then
    found[#found + 1] = {pending[1], pending[3], pending[4], claimed[1][2]}
  else
    -- Somebody deleted it from the stream.
    redis.call('XACK', stream, group, pending[1])
  end
end
repeat
  local page = redis.call('XPENDING', stream, group, '-', '+', math.min(most - #found, looks), ARGV[5])
  for _, pending in ipairs(page) do
    take(pending)
  end
  looks = looks - #page
until #page == 0 or #found == most or looks == 0
while idle >= 0 and #found < most and looks > 0 do
  local page = redis.call('XPENDING', stream, group, from, '+', math.min(100, looks))
  for _, pending in ipairs(page) do
    if #found < most then
      from = '(' .. pending[1]
      if pending[2] ~= me and pending[3] >= idle then
        take(pending)
      end
    end
  end
  looks = looks - #page
  if #page == 0 then
    return {false, found}
  end
end
return {(idle >= 0 or looks == 0) and from, found}
