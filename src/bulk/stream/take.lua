-- Rows of a group that nobody works on: those that were handed back, then those whose worker gave no sign of life.
-- KEYS: stream. ARGV: group, consumer, most, idle milliseconds (-1: none of the dead), the name of what is handed back.
-- Returns entry, milliseconds since it was last claimed, deliveries before this one, fields.
local stream, group, me, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local taken = {}
local function take(found)
  for _, pending in ipairs(found) do
    if #taken < most and pending[2] ~= me then
      local claimed = redis.call('XCLAIM', stream, group, me, 0, pending[1])
      if claimed[1] then
        taken[#taken + 1] = {pending[1], pending[3], pending[4], claimed[1][2]}
      else
        -- Somebody deleted it from the stream.
        redis.call('XACK', stream, group, pending[1])
      end
    end
  end
end
take(redis.call('XPENDING', stream, group, '-', '+', most, ARGV[5]))
if tonumber(ARGV[4]) >= 0 and #taken < most then
  take(redis.call('XPENDING', stream, group, 'IDLE', ARGV[4], '-', '+', most))
end
return taken
