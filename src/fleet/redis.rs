//! The store in Redis or Valkey: one script, one call of it an exchange.

use std::{sync::Arc, time::Duration};

use futures_util::future::{select_ok, try_join_all};
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Script, ServerErrorKind, Value, cmd};
use tokio::time::Instant;

use super::{
    address::{Address, Kind},
    cause::cause,
    link::Link,
    store::{Answer, Granted, Line, Lost, Reply, Request, Store},
    task::{Connecting, Place},
};

pub(super) const SCRIPT: &str = include_str!("lease.lua");

/// A process that did not use a key for so long is none of its members, in microseconds.
const LIFE: u64 = 5_000_000;

/// Keys that a new store is tried with: the digest of none looks like that. Their slots in a cluster lie in the middle of
/// each quarter, so that no node of several has all of them.
const PROBES: [&str; 4] = ["probe-un", "probe-qv", "probe-al", "probe-pn"];

/// So long they are there, in microseconds.
const PROBED: u64 = 1_000;

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
        let life = if PROBES.contains(&request.key.as_str()) { PROBED } else { LIFE };
        call.arg(&self.member).arg(request.pause).arg(life).arg(request.expected).arg(request.lines.len());
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

impl Redis {
    /// The first connection, with a store that is tried out: one that would refuse every exchange is none. An error
    /// says what is wrong, as far as a second look tells, which ends at `until`.
    pub(crate) async fn first(&self, until: Option<Instant>) -> Result<Box<dyn Store>, Lost> {
        let told = async |error| Lost(self.address.why(&error, until).await.into());
        let link = match self.address.connect(self.timeout, None).await {
            Ok(link) => link,
            Err(error) => return Err(told(error).await),
        };
        let store = Connected { link, names: Arc::clone(&self.names) };
        let probes = PROBES.map(|key| store.ask(Request { key: key.to_owned(), ..Request::default() }));
        let tried = match self.address.kind {
            // It may do without one of its nodes.
            Kind::Cluster => select_ok(probes.map(Box::pin)).await.map(drop),
            Kind::One | Kind::Sentinel(_) => try_join_all(probes).await.map(drop),
        };
        match tried {
            Ok(()) => Ok(Box::new(store)),
            Err(error) => Err(told(error).await),
        }
    }
}

impl Place for Redis {
    fn connect(&self, key: Option<String>) -> Connecting {
        let place = self.clone();
        Box::pin(async move {
            let link = place.address.connect(place.timeout, None).await.map_err(|error| lost(&error))?;
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

impl Connected {
    fn ask(&self, request: Request) -> impl Future<Output = RedisResult<Value>> + use<> {
        let mut link = self.link.clone();
        let names = Arc::clone(&self.names);
        async move {
            let answer: RedisResult<Value> = names.call("EVALSHA", &names.sha1, &request).query_async(&mut link).await;
            match answer {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    names.call("EVAL", SCRIPT, &request).query_async(&mut link).await
                }
                answer => answer,
            }
        }
    }
}

impl Store for Connected {
    fn exchange(&self, request: &Request) -> Answer<Reply> {
        let (lines, answer) = (request.lines.len(), self.ask(request.clone()));
        Box::pin(async move { read(answer.await.map_err(|error| lost(&error))?, lines) })
    }

    fn ping(&self) -> Answer<()> {
        let mut link = self.link.clone();
        Box::pin(async move { cmd("PING").query_async(&mut link).await.map_err(|error| lost(&error)) })
    }
}

fn lost(error: &RedisError) -> Lost {
    Lost(cause(error).into())
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
