//! The store in Redis or Valkey: one script, one call of it an exchange.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Script, Value, cmd};

use super::{
    link::{Address, Link},
    store::{Answer, Granted, Line, Lost, Reply, Request, Store},
    task::{Connecting, Place},
};

pub(super) const SCRIPT: &str = include_str!("lease.lua");

/// A process that did not use a key for so long is none of its members, in microseconds.
const LIFE: u64 = 5_000_000;

/// Where the store is, and under what name this process uses it.
#[derive(Clone, Debug)]
pub(crate) struct Redis {
    pub(crate) address: Address,
    pub(crate) names: Arc<Names>,
    /// For a connection to be made.
    pub(crate) timeout: Duration,
}

/// How keys are named in the store.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) prefix: String,
    pub(crate) member: String,
    pub(crate) sha1: String,
}

impl Names {
    pub(crate) fn new(prefix: String, member: String) -> Self {
        Self { prefix, member, sha1: Script::new(SCRIPT).get_hash().to_owned() }
    }

    /// Both keys of a limiter key are in one slot of a cluster, by the part in braces.
    pub(super) fn call(&self, verb: &str, script: &str, request: &Request) -> Cmd {
        let mut call = cmd(verb);
        let state = format!("{}:{{{}}}", self.prefix, request.key);
        call.arg(script).arg(2).arg(&state).arg(format!("{state}:members"));
        call.arg(&self.member).arg(request.pause).arg(LIFE).arg(request.expected).arg(request.lines.len());
        request.lines.iter().for_each(|line| write(&mut call, line));
        call
    }
}

/// In the order in which the script reads it.
fn write(call: &mut Cmd, line: &Line) {
    let terms = &line.terms;
    call.arg(&*line.id).arg(u8::from(terms.window)).arg(terms.limit).arg(terms.span).arg(terms.burst);
    call.arg(terms.refill).arg(terms.per).arg(terms.lease).arg(u8::from(line.fresh)).arg(line.birth).arg(&*line.meta);
    call.arg(line.want).arg(line.need).arg(line.must);
    match line.told {
        Some(told) => call.arg(told.limit).arg(told.remaining).arg(told.reset),
        None => call.arg(-1).arg(0).arg(0),
    };
    for pairs in [&line.returns, &line.owed] {
        call.arg(pairs.len());
        for (key, units) in pairs {
            call.arg(*key).arg(*units);
        }
    }
}

impl Place for Redis {
    fn connect(&self, key: Option<String>) -> Connecting {
        let place = self.clone();
        Box::pin(async move {
            let link = place.address.connect(place.timeout, None).await.map_err(lost)?;
            let store = Connected { link, names: place.names };
            if let Some(key) = key {
                let probe = store.exchange(&Request { key, ..Request::default() });
                let until = crate::clock::now().checked_add(place.timeout);
                let late = || Err(Lost("no answer within the timeout".into()));
                crate::clock::before(until, probe).await.unwrap_or_else(late)?;
            }
            Ok(Box::new(store) as Box<dyn Store>)
        })
    }

    fn name(&self) -> String {
        self.address.to_string()
    }
}

/// A connection, until it fails.
#[derive(Debug)]
struct Connected {
    link: Link,
    names: Arc<Names>,
}

impl Store for Connected {
    fn exchange(&self, request: &Request) -> Answer<Reply> {
        let mut link = self.link.clone();
        let call = self.names.call("EVALSHA", &self.names.sha1, request);
        let (names, request) = (Arc::clone(&self.names), request.clone());
        Box::pin(async move {
            let value: RedisResult<Value> = call.query_async(&mut link).await;
            let value = match value {
                Err(error) if error.kind() == ErrorKind::Server(redis::ServerErrorKind::NoScript) => {
                    names.call("EVAL", SCRIPT, &request).query_async(&mut link).await
                }
                value => value,
            };
            read(value.map_err(lost)?, request.lines.len())
        })
    }

    fn ping(&self) -> Answer<()> {
        let mut link = self.link.clone();
        Box::pin(async move { cmd("PING").query_async(&mut link).await.map_err(lost) })
    }
}

/// What went wrong, by its kind: a server's text may repeat what it was sent. The system's words may be shown.
fn lost(error: RedisError) -> Lost {
    if error.kind() == ErrorKind::Io {
        return Lost(error.to_string().into());
    }
    let what = error.category();
    match error.code() {
        Some(code) => Lost(format!("{what} ({code})").into()),
        None => Lost(what.into()),
    }
}

pub(super) fn read(value: Value, lines: usize) -> Result<Reply, Lost> {
    let Value::Array(parts) = value else { return Err(Lost(UNREADABLE.into())) };
    let mut parts = parts.into_iter();
    let (generation, members, pause, retry) = part::<(String, u32, u64, u64)>(parts.next())?;
    let mut reply = Reply { generation: generation.into(), members, pause, retry, ..Reply::default() };
    for _ in 0..lines {
        let (units, slice, left, meta) = part::<(u64, u64, u64, String)>(parts.next())?;
        reply.granted.push(Granted { units, slice, left, meta: meta.into() });
    }
    for other in parts {
        let (id, meta) = part::<(String, String)>(Some(other))?;
        reply.others.push((id.into(), meta.into()));
    }
    Ok(reply)
}

fn part<T: FromRedisValue>(value: Option<Value>) -> Result<T, Lost> {
    value.and_then(|value| T::from_redis_value(value).ok()).ok_or_else(|| Lost(UNREADABLE.into()))
}

const UNREADABLE: &str = "its answer makes no sense";
