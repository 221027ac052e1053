//! Where a store is, and who asks: read from a URL.
//!
//! Invariant: neither an error nor `Debug` or `Display` shows a user name, a password, or text that may hold one.

use std::fmt;

use redis::ConnectionAddr;

use crate::Error;

/// Where a store is, and who asks.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(super) kind: Kind,
    pub(super) tls: bool,
    pub(super) hosts: Vec<Host>,
    pub(super) login: Option<Login>,
    pub(super) database: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    One,
    Cluster,
    /// They name the master of this name.
    Sentinel(String),
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

/// What a URL may look like.
const FORMS: &str = "redis[s]://[USER:PASSWORD@]HOST[:PORT][/DB], redis[s]+cluster://HOST:PORT,HOST:PORT \
                     or redis[s]+sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]";

/// Of a server, and of a sentinel, where none is told.
const PORTS: (u16, u16) = (6379, 26379);

impl Address {
    /// Reads a URL.
    ///
    /// # Errors
    /// Says which part of it is wrong, without showing it.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let (mut address, path) = Self::of_server(url)?;
        let mut parts = path.into_iter();
        if matches!(address.kind, Kind::Sentinel(_)) {
            address.kind = Kind::Sentinel(master(parts.next())?);
        }
        if let Some(database) = parts.next() {
            address.database = address.database_of(&database)?;
        }
        match parts.next() {
            Some(_) => Err(wrong("its path has more parts than it may have")),
            None => Ok(address),
        }
    }

    /// Reads a URL whose path ends with the name of a stream.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and if it names no stream.
    #[cfg(any(test, feature = "bulk"))]
    pub(crate) fn with_stream(url: &str) -> Result<(Self, String), Error> {
        let (mut address, path) = Self::of_server(url)?;
        let mut parts = path.into_iter();
        if matches!(address.kind, Kind::Sentinel(_)) {
            address.kind = Kind::Sentinel(master(parts.next())?);
        }
        let none = || wrong("it names no stream: its path must end with /STREAM");
        let (first, second) = (parts.next().ok_or_else(none)?, parts.next());
        let stream = match second {
            Some(stream) => {
                address.database = address.database_of(&first)?;
                stream
            }
            // More likely the stream was forgotten; one of that name is reached with its database before it.
            None if first.parse::<i64>().is_ok() => return Err(none()),
            None => first,
        };
        match parts.next() {
            Some(_) => Err(wrong("its path has more parts than it may have (a / in a name is written %2F)")),
            None => Ok((address, stream)),
        }
    }

    /// All but what the path means.
    fn of_server(url: &str) -> Result<(Self, Vec<String>), Error> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(format!("expected {FORMS}")))?;
        let (base, kind) = match scheme.split_once('+') {
            None => (scheme, Kind::One),
            Some((base, "cluster")) => (base, Kind::Cluster),
            Some((base, "sentinel")) => (base, Kind::Sentinel(String::new())),
            Some(_) => return Err(wrong(format!("expected {FORMS}"))),
        };
        let tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(wrong(format!("expected {FORMS}"))),
        };
        if rest.contains(['?', '#']) {
            return Err(wrong("it has a query or a fragment (in a password ? is written %3F and # %23)"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(Login::parse(login)?), hosts),
            None => (None, authority),
        };
        let port = if matches!(kind, Kind::Sentinel(_)) { PORTS.1 } else { PORTS.0 };
        let hosts = hosts.split(',').map(|host| Host::parse(host, port)).collect::<Result<Vec<_>, _>>()?;
        if kind == Kind::One && hosts.len() > 1 {
            return Err(wrong("it has several hosts: use redis+cluster:// or redis+sentinel://"));
        }
        let path = path.strip_suffix('/').unwrap_or(path);
        let parts = path.split('/').filter(|_| !path.is_empty());
        let parts = parts.map(|part| decoded(part).filter(|part| !part.is_empty()));
        let parts = parts.collect::<Option<Vec<_>>>().ok_or_else(|| wrong("a part of its path is empty or no text"))?;
        Ok((Self { kind, tls, hosts, login, database: 0 }, parts))
    }

    fn database_of(&self, text: &str) -> Result<i64, Error> {
        match text.parse::<u32>() {
            Ok(0) => Ok(0),
            Ok(_) if self.kind == Kind::Cluster => Err(wrong("a cluster has no databases")),
            Ok(database) => Ok(database.into()),
            Err(_) => Err(wrong("the database is no number")),
        }
    }
}

impl Host {
    fn parse(text: &str, default: u16) -> Result<Self, Error> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest.split_once(']').ok_or_else(|| wrong("an address lacks its ]"))?;
                let is_port = port.is_empty() || port.starts_with(':');
                if !is_port || name.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(wrong("an address in [] is none"));
                }
                (name, port.strip_prefix(':'))
            }
            None => match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            },
        };
        if !is_name(name) {
            return Err(wrong("a host is missing or is no name (in a password @ / : are written %40 %2F %3A)"));
        }
        let port = match port {
            None => default,
            Some(port) => match port.parse() {
                Ok(port) if port > 0 => port,
                _ => return Err(wrong("a port is no number from 1 to 65535")),
            },
        };
        Ok(Self { name: name.to_owned(), port })
    }

    /// As a sentinel tells it; none if that makes no sense.
    pub(super) fn told(name: &str, port: &str) -> Option<Self> {
        let port = port.parse().ok()?;
        is_name(name).then(|| Self { name: name.to_owned(), port })
    }

    pub(super) fn address(&self, tls: bool) -> ConnectionAddr {
        let (host, port) = (self.name.clone(), self.port);
        match tls {
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            false => ConnectionAddr::Tcp(host, port),
        }
    }
}

/// Of a host, or an address.
fn is_name(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | ':');
    !text.is_empty() && text.chars().all(is_letter)
}

impl Login {
    fn parse(text: &str) -> Result<Self, Error> {
        let (user, password) = text.split_once(':').ok_or_else(|| wrong("it has a user and no password"))?;
        let text = |part| decoded(part).ok_or_else(|| wrong("a %-escape of the user or the password is none"));
        let (user, password) = (text(user)?, text(password)?);
        match password.is_empty() {
            true => Err(wrong("its password is empty")),
            false => Ok(Self { user: Some(user).filter(|user| !user.is_empty()), password }),
        }
    }
}

fn master(part: Option<String>) -> Result<String, Error> {
    part.ok_or_else(|| wrong("it names no master: redis+sentinel://HOST:PORT/MASTER"))
}

fn wrong(what: impl fmt::Display) -> Error {
    Error::builder(format!("the store's URL: {what}"))
}

/// Percent-escapes undone: RFC 3986 §2.1.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// The URL without its login.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss" } else { "redis" })?;
        f.write_str(match self.kind {
            Kind::One => "://",
            Kind::Cluster => "+cluster://",
            Kind::Sentinel(_) => "+sentinel://",
        })?;
        for (place, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if place > 0 { "," } else { "" })?;
        }
        if let Kind::Sentinel(master) = &self.kind {
            write!(f, "/{master}")?;
        }
        match self.database {
            0 => Ok(()),
            database => write!(f, "/{database}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, shown: &str) -> Address {
        let address = Address::parse(url).unwrap();
        assert_eq!(address.to_string(), shown, "{url}");
        address
    }

    #[test]
    fn a_url_says_where_and_who() {
        check("redis://h", "redis://h:6379");
        check("redis://h:1/", "redis://h:1");
        check("valkeys://h:1/3", "rediss://h:1/3");
        check("redis://[::1]:7", "redis://[::1]:7");
        check("redis://[::1]", "redis://[::1]:6379");
        check("rediss+cluster://a:1,b:2/0", "rediss+cluster://a:1,b:2");
        check("redis+sentinel://a,b:2/main/4", "redis+sentinel://a:26379,b:2/main/4");
        let address = check("redis://me:p%40%2Fss@h:1", "redis://h:1");
        let login = address.login.unwrap();
        assert_eq!((login.user.as_deref(), login.password.as_str()), (Some("me"), "p@/ss"));
        assert_eq!(check("redis://:pw@h:1", "redis://h:1").login.unwrap().user, None);
    }

    #[track_caller]
    fn check_stream(url: &str, shown: &str, stream: &str) {
        let (address, named) = Address::with_stream(url).unwrap();
        assert_eq!((address.to_string(), named.as_str()), (shown.to_owned(), stream), "{url}");
    }

    #[test]
    fn a_stream_is_the_end_of_a_path() {
        check_stream("redis://h:1/jobs", "redis://h:1", "jobs");
        check_stream("redis://h:1/2/jobs", "redis://h:1/2", "jobs");
        check_stream("redis://h:1/0/7", "redis://h:1", "7");
        check_stream("redis://h:1/jobs%2Feu:7", "redis://h:1", "jobs/eu:7");
        check_stream("redis+cluster://a:1,b:2/{jobs}", "redis+cluster://a:1,b:2", "{jobs}");
        check_stream("redis+sentinel://a:1/main/jobs", "redis+sentinel://a:1/main", "jobs");
        check_stream("redis+sentinel://a:1/main/5/jobs", "redis+sentinel://a:1/main/5", "jobs");
    }

    #[test]
    fn a_url_that_makes_no_sense_says_why_and_shows_nothing() {
        let urls = [
            ("s3cret", "expected redis[s]://"),
            ("http://s3cret", "expected redis[s]://"),
            ("redis+x://s3cret", "expected redis[s]://"),
            ("redis://", "a host is missing"),
            ("redis://s3cret:pw@", "a host is missing"),
            ("redis://me:s3/cret@h:1", "a port is no number"),
            ("redis://me:s3@c/ret@h:1", "the database is no number"),
            ("redis://me:s3cret@h:port", "a port is no number"),
            ("redis://s3cret@h", "no password"),
            ("redis://me:@h", "password is empty"),
            ("redis://me:s3cret%x@h", "%-escape"),
            ("redis://me:s3?cret@h", "query"),
            ("redis://me:s3cret@a,b", "several hosts"),
            ("redis://[s3cret]:1", "an address in []"),
            ("redis://h/s3cret", "the database is no number"),
            ("redis://h/-1", "the database is no number"),
            ("redis://h/1/s3cret", "more parts"),
            ("redis+cluster://h/1", "no databases"),
            ("redis+sentinel://s3cret", "no master"),
            ("redis+sentinel://h/main/s3cret", "the database is no number"),
        ];
        for (url, why) in urls {
            let error = Address::parse(url).unwrap_err();
            let said = format!("{error} {error:?}");
            assert!(said.contains(why) && !said.contains("s3"), "{url}: {said}");
            assert!(error.is_builder());
        }
        for (url, why) in [
            ("redis://h:1", "no stream"),
            ("redis://h:1/7", "no stream"),
            ("redis://h:1/s3cret/jobs", "the database is no number"),
            ("redis://h:1/1/2/s3cret", "more parts"),
            ("redis+cluster://h/1/jobs", "no databases"),
            ("redis+sentinel://h/main", "no stream"),
        ] {
            let said = Address::with_stream(url).unwrap_err().to_string();
            assert!(said.contains(why) && !said.contains("s3"), "{url}: {said}");
        }
    }

    #[test]
    fn a_login_is_not_shown() {
        let address = Address::parse("redis://me:s3cret@h:1/2").unwrap();
        assert_eq!(format!("{address:?}"), "Address(redis://h:1/2)");
    }
}
