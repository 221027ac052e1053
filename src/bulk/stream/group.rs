//! A consumer group of a stream, command by command. It decides nothing.

use std::{collections::HashSet, time::Duration};

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value, cmd};

use crate::{
    bulk::claim::Mark,
    fleet::link::{Address, Link},
};

/// A group, and who this is in it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) address: Address,
    pub(super) stream: String,
    pub(super) name: String,
    pub(super) consumer: String,
}

/// A row that was read or taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) entry: String,
    /// Since it was last claimed.
    pub(super) idle: Duration,
    /// How many had it before.
    pub(super) before: u32,
    pub(super) row: Option<Vec<u8>>,
    pub(super) seed: Vec<u8>,
}

/// The field of an entry that is the row, and the one that tells one push from another.
pub(super) const ROW: &str = "row";
pub(super) const SEED: &str = "seed";

/// Whose rows those are that were handed back.
const BACK: &str = "abide-handed-back";

/// A connection is there by then, and an answer.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// Where the claimed rows of a group begin.
const START: &str = "-";

/// Entries in one command.
pub(super) const AT_ONCE: usize = 500;

/// A worker without rows that was silent for so long has left.
const LONG_GONE: Duration = Duration::from_secs(3600);

impl Group {
    pub(super) async fn connect(&self) -> RedisResult<Link> {
        self.address.connect(CONNECT, Some(ANSWER)).await
    }

    /// Makes sure that there is one, and its stream; a new one begins at the start of the stream.
    pub(super) async fn create(&self, link: &mut Link) -> RedisResult<()> {
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(&self.stream).arg(&self.name).arg(0).arg("MKSTREAM");
        match create.query_async(link).await {
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
            created => created,
        }
    }

    pub(super) async fn has_stream(&self, link: &mut Link) -> RedisResult<bool> {
        cmd("EXISTS").arg(&self.stream).query_async(link).await
    }

    /// Rows that nobody has read.
    pub(super) async fn read(&self, link: &mut Link, most: usize) -> RedisResult<Vec<Taken>> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&self.name).arg(&self.consumer).arg("COUNT").arg(most);
        read.arg("STREAMS").arg(&self.stream).arg(">");
        let streams = list(read.query_async(link).await?);
        let entries = streams.into_iter().flat_map(|stream| list(stream).into_iter().nth(1)).flat_map(list);
        entries.map(|entry| taken(list(entry), Duration::ZERO, 0)).collect()
    }

    /// Rows that were handed back, and those that nobody gave a sign of life for in `idle`; `None`: none of these. With
    /// them where to go on; `None`: all that are claimed were looked at.
    pub(super) async fn take(
        &self,
        link: &mut Link,
        most: usize,
        idle: Option<Duration>,
        from: Option<&str>,
    ) -> RedisResult<(Vec<Taken>, Option<String>)> {
        let mut take = self.script(include_str!("take.lua"));
        let idle = idle.map_or(-1, |idle| i64::try_from(idle.as_millis()).unwrap_or(i64::MAX));
        take.arg(most).arg(idle).arg(BACK).arg(from.unwrap_or(START));
        let (next, found): (Option<String>, Vec<Value>) = take.query_async(link).await?;
        let each = |found: Value| {
            let mut found = list(found).into_iter();
            let mut next = || found.next().unwrap_or(Value::Nil);
            let (entry, idle, before) = (next(), number(next()), number(next()));
            taken(vec![entry, next()], Duration::from_millis(idle), u32::try_from(before).unwrap_or(u32::MAX))
        };
        Ok((found.into_iter().map(each).collect::<RedisResult<_>>()?, next))
    }

    /// Rows that this consumer has and does not know of: the answer that named them was lost.
    pub(super) async fn orphans(&self, link: &mut Link, held: &HashSet<String>) -> RedisResult<Vec<Taken>> {
        let mut orphans = Vec::new();
        for (entry, deliveries) in self.pending(link, Some(&self.consumer)).await? {
            if held.contains(&entry) {
                continue;
            }
            let mut range = cmd("XRANGE");
            range.arg(&self.stream).arg(&entry).arg(&entry);
            match list(range.query_async(link).await?).into_iter().next() {
                Some(found) => orphans.push(taken(list(found), Duration::ZERO, deliveries.saturating_sub(1))?),
                None => self.acknowledge(link, &[entry]).await?,
            }
        }
        Ok(orphans)
    }

    /// What is claimed and not acknowledged, with its deliveries: of one consumer, or of all.
    pub(super) async fn pending(&self, link: &mut Link, of: Option<&str>) -> RedisResult<Vec<(String, u32)>> {
        let (mut pending, mut from) = (Vec::new(), START.to_owned());
        loop {
            let mut page = cmd("XPENDING");
            page.arg(&self.stream).arg(&self.name).arg(&from).arg("+").arg(AT_ONCE).arg(of);
            let page = list(page.query_async(link).await?);
            let full = page.len() == AT_ONCE;
            for found in page {
                let mut found = list(found).into_iter();
                let entry = String::from_redis_value(found.next().unwrap_or(Value::Nil))?;
                let deliveries = number(found.nth(2).unwrap_or(Value::Nil));
                pending.push((entry, u32::try_from(deliveries).unwrap_or(u32::MAX)));
            }
            match pending.last() {
                Some((last, _)) if full => from = format!("({last}"),
                _ => return Ok(pending),
            }
        }
    }

    /// How many rows are claimed and not acknowledged, by whomever.
    pub(super) async fn open(&self, link: &mut Link) -> RedisResult<u64> {
        let mut summary = cmd("XPENDING");
        summary.arg(&self.stream).arg(&self.name);
        Ok(number(list(summary.query_async(link).await?).into_iter().next().unwrap_or(Value::Nil)))
    }

    /// A sign of life for these; those that another worker has by now.
    pub(super) async fn beat(&self, link: &mut Link, entries: &[String]) -> RedisResult<Vec<String>> {
        let mut beat = self.script(include_str!("beat.lua"));
        beat.arg(entries).query_async(link).await
    }

    /// Rows that are about to be sent; those that another worker has by now.
    pub(super) async fn mark(
        &self,
        link: &mut Link,
        marks: impl Iterator<Item = &Mark>,
    ) -> RedisResult<HashSet<String>> {
        let mut script = self.script(include_str!("mark.lua"));
        for mark in marks {
            script.arg(&mark.entry).arg(mark.deliveries);
        }
        script.query_async(link).await
    }

    pub(super) async fn acknowledge(&self, link: &mut Link, entries: &[String]) -> RedisResult<()> {
        cmd("XACK").arg(&self.stream).arg(&self.name).arg(entries).query_async(link).await
    }

    /// Hands rows back, each with the number of those that had it.
    pub(super) async fn hand_back(&self, link: &mut Link, entries: &[(String, u32)]) -> RedisResult<()> {
        let mut back = self.script(include_str!("back.lua"));
        back.arg(BACK);
        for (entry, deliveries) in entries {
            back.arg(entry).arg(deliveries);
        }
        back.query_async(link).await
    }

    /// Moves a row of unknown fate to the stream beside this one that holds those.
    pub(super) async fn set_aside(&self, link: &mut Link, entry: &str) -> RedisResult<()> {
        let mut range = cmd("XRANGE");
        range.arg(&self.stream).arg(entry).arg(entry);
        let found = list(range.query_async(link).await?).into_iter().next();
        if let Some(fields) = found.and_then(|found| list(found).into_iter().nth(1)) {
            let mut add = cmd("XADD");
            add.arg(self.aside()).arg("*");
            for field in list(fields) {
                add.arg(Vec::<u8>::from_redis_value(field)?);
            }
            add.arg("entry").arg(entry).arg("group").arg(&self.name);
            add.query_async::<()>(link).await?;
        }
        // Should this not arrive the row is set aside once more: that is two notes, and no call.
        self.acknowledge(link, &[entry.to_owned()]).await
    }

    pub(super) fn aside(&self) -> String {
        format!("{}:unknown", self.stream)
    }

    /// Takes the consumer's name out of the group, and those of others that left no row behind.
    pub(super) async fn leave(&self, link: &mut Link) -> RedisResult<()> {
        let mut leave = self.script(include_str!("leave.lua"));
        let long_gone = u64::try_from(LONG_GONE.as_millis()).unwrap_or(u64::MAX);
        leave.arg(BACK).arg(long_gone).query_async(link).await
    }

    /// A script whose first arguments are the group and the consumer.
    fn script(&self, text: &str) -> Cmd {
        let mut script = cmd("EVAL");
        script.arg(text).arg(1).arg(&self.stream).arg(&self.name).arg(&self.consumer);
        script
    }
}

/// Whether it is of no use to come back later: what is asked makes no sense to this store.
pub(super) fn is_final(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly,
        ) => false,
        ErrorKind::Extension => !matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS" | "BUSY")),
        ErrorKind::Server(_) | ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => true,
        _ => false,
    }
}

/// Whether the store does not want this client.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    let refused = matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig);
    refused || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
}

fn taken(entry: Vec<Value>, idle: Duration, before: u32) -> RedisResult<Taken> {
    let mut entry = entry.into_iter();
    let id = String::from_redis_value(entry.next().unwrap_or(Value::Nil))?;
    let (mut row, mut seed) = (None, Vec::new());
    let mut fields = list(entry.next().unwrap_or(Value::Nil)).into_iter();
    while let (Some(Value::BulkString(name)), Some(Value::BulkString(value))) = (fields.next(), fields.next()) {
        match name.as_slice() {
            name if name == ROW.as_bytes() => row = Some(value),
            name if name == SEED.as_bytes() => seed = value,
            _ => {}
        }
    }
    Ok(Taken { entry: id, idle, before, row, seed })
}

/// The parts of a list, of a map its pairs; of anything else none.
fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        Value::Map(pairs) => pairs.into_iter().map(|(name, value)| Value::Array(vec![name, value])).collect(),
        _ => Vec::new(),
    }
}

fn number(value: Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(number).unwrap_or(0),
        _ => 0,
    }
}
