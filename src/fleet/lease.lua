-- One decision for one limiter key: takes back what was not used, books what was sent without a lease, grants.
--
-- KEYS[1] the state of the key, KEYS[2] its members. Times are microseconds of the store's clock, and never go back.
-- ARGV: member, pause asked (0: none), longest life of a member, members to expect (0: those that are seen), number of
-- quotas; then of each quota:
--   id, kind (1 window, 0 bucket), limit, span, burst, refill, per, lease, fresh, level at birth, meta,
--   want, need, must, told limit (-1: none), told remaining, told reset, number of returns, (slice, units)*,
--   number of bookings, (age, units)*
-- Reply: {generation, members, pause left, retry after}, then of each quota {granted, slice, left, meta}, then of each
-- learned quota that was not named {id, meta}.
--
-- A window's span is the window and the time that a lease lasts; `refill` units come back in `per` microseconds; levels
-- are kept in units times `per`, so that a refill is a whole number. The arithmetic is that of one process's limiter.
local SLICES = 64
local KEPT = 1.6 -- entries of learned quotas are kept this much longer than the span: it may grow
local MOST = 64 -- learned quotas of a key
local MINUTE = 60000000
local SOON = 2000000 -- each asks again about a slow limit within this time
local FEW = 4 -- so many members take no turns
local PATIENT = 1000000 -- one for which units are kept asks again within so long: else it has gone

local at = 0
local function arg() at = at + 1; return ARGV[at] end
local function num() return tonumber(arg()) end

local member, asked, life, expected, count = arg(), num(), num(), num(), num()
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local raw = redis.call('GET', KEYS[1])
local state = raw and cmsgpack.unpack(raw)
  or { born = member .. ':' .. clock, last = clock, ahead = 0, pause = 0, gap = 0, quotas = {} }
if clock + state.ahead < state.last then state.ahead = state.last - clock end
local now = clock + state.ahead

local function slice_of(line) return math.ceil(line.span / SLICES) end

local function others_at(line, when)
  local left = line.span - (when - line.others_at)
  if line.others == 0 or left <= 0 then return 0 end
  return math.ceil(line.others * left / line.span)
end

-- What is left of a window at `when`; `line.used` counts what counts at `line.at`.
local function room_at(line, when)
  if line.kind == 0 then return math.huge end
  return math.max(0, line.limit - line.used - others_at(line, when))
end

-- The first instant from `when` at which others leave room for `units` beside `used` of the fleet's; nil: never.
local function others_gone(line, units, used, when)
  local spare = line.limit - used - units
  if spare < 0 then return nil end
  if others_at(line, when) <= spare then return when end
  return math.max(when, line.others_at + line.span - math.floor(spare * line.span / line.others))
end

-- The first instant from `when` at which a window has room for `units`.
local function free_at(line, units, when)
  if line.kind == 0 then return when end
  local lasts, used = slice_of(line) * SLICES, line.used
  for i = 1, #line.slices, 2 do
    local ends = line.slices[i] + lasts
    if ends > line.at then
      local free = others_gone(line, units, used, when)
      if free and free < ends then return free end
      used = used - line.slices[i + 1]
      when = math.max(when, ends)
    end
  end
  return others_gone(line, units, used, when) or math.huge
end

local function fill(line, upto, cap)
  line.level = math.min(line.level + line.refill * math.max(0, upto - line.at), cap * line.per)
  line.at = math.max(line.at, upto)
end

-- Counts what counts now; `anew`: the span has changed.
local function expire(line, anew)
  local lasts = slice_of(line) * SLICES
  if not anew and (#line.slices == 0 or line.slices[1] + lasts > now) then return end
  local forgets, kept, used = line.meta == '' and lasts or math.floor(lasts * KEPT), {}, 0
  for i = 1, #line.slices, 2 do
    local ends, units = line.slices[i], line.slices[i + 1]
    if ends + forgets > now then
      kept[#kept + 1] = ends
      kept[#kept + 1] = units
      if ends + lasts > now then used = used + units end
    end
  end
  line.slices, line.used = kept, used
end

-- While the window is full the level fills no further than to what comes back during a lease, from the instant at which
-- the window frees: one unit at least, and no burst.
local function advance(line)
  if line.kind == 1 and room_at(line, line.at) == 0 then
    local saved = math.max(1, line.refill * line.lease / line.per)
    fill(line, math.min(now, free_at(line, 1, line.at)), math.min(saved, line.burst))
  end
  fill(line, now, math.max(line.burst, line.saves or 0))
  if line.kind == 1 then expire(line, false) end
end

-- Books `units` that go out, or went out, at `when`.
local function book(line, units, when)
  if line.kind == 0 and units > 0 then
    -- A unit may be sent a lease later than it is booked: what comes back meanwhile is kept free in the burst, so that
    -- the sends of any span t are at most burst + refill * t / per, as if each had been booked when it was sent.
    local kept = math.max(1, line.burst - line.refill * line.lease / line.per)
    line.level = math.min(line.level, kept * line.per)
  end
  line.level = line.level - units * line.per
  if line.kind == 0 or units == 0 then return 0 end
  line.used = line.used + units
  local slice = slice_of(line)
  local ends = (math.floor(when / slice) + 1) * slice
  local i = #line.slices - 1
  while i > 0 and line.slices[i] > ends do i = i - 2 end
  if i > 0 and line.slices[i] == ends then
    line.slices[i + 1] = line.slices[i + 1] + units
  elseif when == now and i > 0 and i == #line.slices - 1 and line.slices[i] > now then
    -- The slices of a span that has changed may end later: the newest takes it.
    line.slices[i + 1] = line.slices[i + 1] + units
    return line.slices[i]
  else
    table.insert(line.slices, i + 2, units)
    table.insert(line.slices, i + 2, ends)
  end
  return ends
end

-- What was leased and not used goes back to the slice it came from.
local function take_back(line, ends, units)
  line.level = line.level + units * line.per
  for i = 1, #line.slices, 2 do
    if line.slices[i] == ends then
      units = math.min(units, line.slices[i + 1])
      line.slices[i + 1] = line.slices[i + 1] - units
      if ends + slice_of(line) * SLICES > now then line.used = line.used - units end
      return
    end
  end
end

-- What others use, by the server's count of what is left against the fleet's own.
local function correct(line, limit, remaining, reset)
  line.others = math.max(0, math.min(line.limit, limit - line.used - remaining))
  line.others_at = now
  if remaining == 0 and line.used <= line.limit / 2 and reset > 0 then
    line.stopped = math.max(line.stopped, now + math.min(reset, line.span))
  end
end

local function life_of(line)
  if line.meta ~= '' then return math.min(math.max(10 * line.span, MINUTE), 60 * MINUTE) end
  if line.kind == 1 then return 2 * line.span end
  return math.ceil((line.burst * line.per - line.level) / line.refill) + line.lease
end

local function make_room()
  local learned, oldest = 0, nil
  for id, line in pairs(state.quotas) do
    if now - line.heard > life_of(line) then
      state.quotas[id] = nil
    elseif line.meta ~= '' then
      learned = learned + 1
      if not oldest or line.heard < state.quotas[oldest].heard then oldest = id end
    end
  end
  if learned > MOST then state.quotas[oldest] = nil end
end

local function read_line()
  local id, kind, limit, span, burst = arg(), num(), num(), num(), num()
  local refill, per, lease, fresh, birth, meta = num(), num(), num(), num(), num(), arg()
  local ask = { id = id, want = num(), need = num(), must = num() }
  local told, remaining, reset = num(), num(), num()
  local line = state.quotas[id]
  if not line then
    line = { level = birth * per, at = now, per = per, others = 0, others_at = 0, stopped = 0, used = 0, slices = {} }
    state.quotas[id] = line
    fresh = 1
  elseif fresh == 1 then
    advance(line)
    if line.per ~= per then line.level = line.level / line.per * per end
  end
  if fresh == 1 then
    local changed
    -- Processes that are farther away lease for longer: what they lease counts for as long, whoever asks.
    span = math.max(span, meta == '' and line.span or 0)
    changed = line.span ~= span
    line.kind, line.limit, line.span, line.burst = kind, limit, span, burst
    line.refill, line.per, line.lease, line.meta, line.heard = refill, per, lease, meta, now
    if kind == 1 then expire(line, changed) end
  else
    advance(line)
  end
  for _ = 1, num() do
    local ends, units = num(), num()
    take_back(line, ends, units)
  end
  local level = line.level
  for _ = 1, num() do
    local age, units = num(), num()
    book(line, units, now - math.max(0, age))
  end
  if line.kind == 1 and line.level < level then
    -- A window has it in its slices. What would have come back since is not known: the level is no debt, and no burst.
    line.level = math.min(level, line.per)
  else
    -- A flood that nobody could hold back, while the store was away, is forgiven after one period.
    line.level = math.max(line.level, -line.limit * line.per)
  end
  fill(line, now, math.max(line.burst, line.saves or 0))
  if told >= 0 then correct(line, told, remaining, reset) end
  ask.line = line
  return ask
end

-- The end of a pause: what was saved before is not let out.
local paused_before = state.pause > state.last and state.pause <= now
local asks = {}
for i = 1, count do asks[i] = read_line() end
if asked > 0 then state.pause = math.max(state.pause, now + asked) end
if paused_before then
  for _, line in pairs(state.quotas) do
    advance(line)
    line.level = math.min(line.level, line.per)
  end
end

redis.call('ZADD', KEYS[2], now, member)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. (now - life))
local members = redis.call('ZCARD', KEYS[2])
local active = redis.call('ZCOUNT', KEYS[2], now - 2 * state.gap - 250000, '+inf')
-- While processes come back from an outage the others still go on by shares of their own.
local part = expected > active and 1 or 2
active = math.max(active, expected)

-- A call that costs much would wait for ever beside those that take each unit as it comes: what it needs is kept.
local hungry = state.hungry
local fed = hungry and hungry.member == member
if hungry and (fed or hungry.till <= now) then
  hungry, state.hungry = nil, nil
  for _, line in pairs(state.quotas) do line.saves = nil end
end

-- How much each quota has for this member: no more than its share, no less than its next call needs.
local share, fits, heavy = 1, now >= state.pause and not hungry, false
for _, ask in ipairs(asks) do
  local line = ask.line
  if ask.must > 0 then ask.slice = book(line, ask.must, now) end
  local level = math.floor(line.level / line.per)
  local room = room_at(line, now)
  ask.has = math.max(0, math.min(level, room))
  if ask.need > line.burst and level >= math.floor(line.burst) and room >= ask.need then ask.has = ask.need end
  if now < line.stopped then ask.has = 0 end
  local refilled = math.ceil(part * line.refill * line.lease / line.per / active)
  local fair = math.max(part == 2 and math.ceil(level / active) or 0, refilled, ask.need)
  ask.has = math.min(ask.has, fair)
  if ask.has < ask.need then
    fits = false
    heavy = heavy or ask.need > 1
  end
  if ask.want > 0 then share = math.min(share, ask.has / ask.want) end
end

local retry, gap, replies = 0, 0, { { state.born, members, math.max(0, state.pause - now), 0 } }
for i, ask in ipairs(asks) do
  local line, granted = ask.line, 0
  if fits then granted = math.max(ask.need, math.min(ask.has, math.floor(ask.want * share))) end
  if granted > 0 then ask.slice = book(line, granted, now) end
  if granted < ask.want then
    local units = math.max(1, ask.need)
    local level = math.max(0, math.min(units, math.floor(line.burst)) * line.per - line.level) / line.refill
    local ready = math.max(math.ceil(level), free_at(line, units, now) - now, line.stopped - now)
    local fills = line.burst * line.per / line.refill / 2
    -- Each has its turn; with a slow limit no later than in 2 s, for a unit may be there and nobody else want it. A few
    -- may all ask for each unit.
    local turn = math.min(active * line.per / line.refill / part, SOON)
    if active <= FEW and part == 2 then turn = 0 end
    gap = math.max(gap, math.ceil(turn), math.ceil(math.min(line.lease * 0.9, fills)))
    -- What others give back, or a server tells them, may come before: it is asked again after a part of a long wait.
    ready = math.min(ready, 2 * line.span + 1000000)
    retry = math.max(retry, math.min(ready, math.max(250000, math.ceil(ready / 4))), gap)
  end
  local left = line.kind == 1 and room_at(line, now) or math.max(0, math.floor(line.level / line.per))
  replies[i + 1] = { granted + ask.must, ask.slice or 0, left, line.meta }
end
if fed and fits then
  -- The others have their turn for as long as that took to come back.
  for _, ask in ipairs(asks) do
    state.fed = math.max(state.fed or 0, now + math.ceil(ask.need * ask.line.per / ask.line.refill))
  end
end
if now < state.pause then retry = math.max(retry, state.pause - now) end
if gap > 0 then state.gap = gap end
if heavy and not hungry and now >= state.pause and now >= (state.fed or 0) then
  retry = math.min(retry, PATIENT)
  state.hungry = { member = member, till = now + retry + 200000 }
  for _, ask in ipairs(asks) do
    if active > 1 and ask.need > ask.line.burst then ask.line.saves = ask.need end
  end
elseif hungry then
  retry = math.max(retry, math.min(hungry.till - now, gap))
end
replies[1][4] = retry

local named = {}
for _, ask in ipairs(asks) do named[ask.id] = true end
local lives = math.max(life, state.pause - now)
make_room()
for id, line in pairs(state.quotas) do
  if line.meta ~= '' and not named[id] then replies[#replies + 1] = { id, line.meta } end
  lives = math.max(lives, life_of(line))
end
state.last = now
lives = math.ceil(lives / 1000)
redis.call('SET', KEYS[1], cmsgpack.pack(state), 'PX', lives)
redis.call('PEXPIRE', KEYS[2], lives)
return replies
