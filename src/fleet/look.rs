//! A second look at a store that cannot be used, for what its URL has wrong: TLS, the kind of the store, its master.

use std::{error::Error, io, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, cmd};
use tokio::{net::TcpStream, time::Instant};

use super::{
    address::{Address, Host, Kind},
    cause::cause,
};
use crate::clock;

/// What a server does when it is spoken to without TLS.
enum Speech {
    Plain,
    Tls,
    /// It ends the connection.
    None,
}

/// The first byte of an answer in TLS: an alert, RFC 8446 §5.1.
const ALERT: u8 = 21;

/// Of a connection; whoever looks has less time.
const LONG: Duration = Duration::from_secs(5);

const PLAIN: &str = "it speaks without TLS: redis:// in place of rediss://";
const TLS: &str = "it speaks TLS: rediss:// in place of redis://";
const NO_ANSWER: &str = "it ends connections without TLS: rediss:// in place of redis://, if it speaks TLS";
const NO_CLUSTER: &str = "it is no cluster: redis:// in place of redis+cluster://";
const NO_SENTINEL: &str = "it is no sentinel: redis:// in place of redis+sentinel://, or the sentinels' HOST:PORT";
const SENTINEL: &str = "it is a sentinel: redis+sentinel://HOST:PORT/MASTER in place of redis://";
const NO_MASTER: &str = "the sentinels know no master of this name: redis+sentinel://HOST:PORT/MASTER";

impl Address {
    /// Why there is no connection, in words: `error`, or what is seen at one of the hosts until then.
    pub(super) async fn why(&self, error: &RedisError, until: Option<Instant>) -> String {
        let looks = self.hosts.iter().map(async |host| clock::before(until, self.look(host, error)).await.flatten());
        let seen = join_all(looks).await.into_iter().flatten().next();
        seen.unwrap_or_else(|| cause(error))
    }

    /// What is wrong with one host, if it is clear.
    async fn look(&self, host: &Host, error: &RedisError) -> Option<String> {
        let alone = Self { kind: Kind::One, hosts: vec![host.clone()], login: None, database: 0, tls: self.tls };
        let speech = match speech(host).await {
            Ok(speech) => speech,
            // The client has said so of one server, not of several.
            Err(error) => return (self.kind != Kind::One).then(|| format!("{host}: {error}")),
        };
        match (speech, self.tls) {
            (Speech::Plain, true) => return Some(PLAIN.into()),
            (Speech::Tls, false) => return Some(TLS.into()),
            (Speech::None, false) if alone.with_tls().await => return Some(TLS.into()),
            (Speech::None, false) => return Some(NO_ANSWER.into()),
            (Speech::Plain, false) | (Speech::Tls | Speech::None, true) => {}
        }
        let known = Self { login: self.login.clone(), ..alone.clone() };
        match &self.kind {
            Kind::One => known.told(&["INFO", "server"], "redis_mode:sentinel").await.ok()?.then(|| SENTINEL.into()),
            Kind::Cluster => match known.told(&["INFO", "cluster"], "cluster_enabled:0").await {
                Ok(alone) => alone.then(|| NO_CLUSTER.into()),
                Err(error) => Some(cause(&error)),
            },
            Kind::Sentinel(master) => {
                let asked = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", master];
                let named = match alone.ask(&asked).await {
                    Err(error) if self.login.is_some() && error.code() == Some("NOAUTH") => known.ask(&asked).await,
                    named => named,
                };
                Some(by_sentinel(named, error))
            }
        }
    }

    /// Whether a handshake gets as far as a certificate.
    async fn with_tls(&self) -> bool {
        let Err(error) = (Self { tls: true, ..self.clone() }).connect(LONG, None).await else { return true };
        // The client's error has its source in an Arc, and that is the source.
        let shared = error.source().and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
        let system = shared.and_then(|shared| shared.downcast_ref::<io::Error>());
        let refused = system.and_then(|system| system.get_ref()?.downcast_ref::<rustls::Error>());
        matches!(refused, Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)))
    }

    async fn ask(&self, words: &[&str]) -> RedisResult<Value> {
        let mut link = self.connect(LONG, None).await?;
        let (verb, rest) = words.split_first().unwrap_or((&"PING", &[]));
        cmd(verb).arg(rest).query_async(&mut link).await
    }

    /// Whether the answer has this part.
    async fn told(&self, words: &[&str], part: &str) -> RedisResult<bool> {
        let answer = self.ask(words).await?;
        Ok(matches!(answer, Value::BulkString(text) if String::from_utf8_lossy(&text).contains(part)))
    }
}

async fn speech(host: &Host) -> io::Result<Speech> {
    let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
    stream.writable().await?;
    stream.try_write(b"PING\r\n")?;
    let mut first = [0];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut first) {
            Ok(0) => return Ok(Speech::None),
            Ok(_) => return Ok(if first == [ALERT] { Speech::Tls } else { Speech::Plain }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Speech::None),
            Err(error) => return Err(error),
        }
    }
}

/// `named`: what a sentinel says of the master, which is not to be had by `error`.
fn by_sentinel(named: RedisResult<Value>, error: &RedisError) -> String {
    let parts = match named {
        Ok(Value::Array(parts)) => parts.into_iter().map(redis::from_redis_value::<String>),
        Ok(_) => return NO_MASTER.into(),
        // It does not know the command.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError) => return NO_SENTINEL.into(),
        Err(error) => return cause(&error),
    };
    let parts: Vec<String> = parts.flatten().collect();
    let host = match parts.as_slice() {
        [name, port] => Host::told(name, port).map_or_else(String::new, |host| format!(" {host}")),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::MasterNameNotFoundBySentinel => format!("the master{host} is down, as the sentinels see it"),
        _ => format!("the master{host} that the sentinels name: {}", cause(error)),
    }
}
