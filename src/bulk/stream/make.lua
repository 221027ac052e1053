-- Makes a stream without rows. KEYS: stream.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XDEL', KEYS[1], redis.call('XADD', KEYS[1], '*', 'row', ''))
end
return 0
