//! Why a store is of no use, in words: what is wrong and, where that is clear, what to do.
//!
//! Invariant: a server's text is not repeated, for it may hold what it was sent, and what a terminal obeys.

use std::{error::Error as _, fmt::Write};

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Error codes and what they mean to a fleet: `createSharedObjects` in `server.c` of Redis 7.0, `clusterRedirectClient` in
/// `cluster.c`, and ACLs.
const CODES: &[(&str, &str)] = &[
    ("READONLY", "it is a replica and takes no writes: name the master, or its sentinels by redis+sentinel://"),
    ("OOM", "its memory is full: raise its maxmemory, or give the limits a store of their own"),
    ("NOAUTH", "it wants a password: redis://USER:PASSWORD@HOST"),
    ("WRONGPASS", NO_LOGIN),
    ("NOPERM", RIGHTS),
    ("NOSCRIPT", "it does not keep the script, and does not take it as a whole"),
    ("MOVED", "it is one node of a cluster: redis+cluster:// in place of redis://"),
    ("ASK", "it is one node of a cluster: redis+cluster:// in place of redis://"),
    ("CLUSTERDOWN", "the cluster is down: some of its keys have no server"),
    ("TRYAGAIN", "the cluster moves the key to another node"),
    ("LOADING", "it is reading its data from the disk, and will be there when it has"),
    ("MASTERDOWN", "it is a replica, and its master is away"),
    ("MISCONF", "it takes no writes since it cannot write to its disk: its log says why"),
    ("NOREPLICAS", "it takes no writes since it has too few replicas: see its min-replicas-to-write"),
    ("BUSY", "it is busy with a script"),
    ("DENIED", "it is in protected mode: it takes no clients of other machines before it has a password"),
];

const NO_LOGIN: &str = "it does not know this user and password";

/// What the user of a fleet has to be allowed: as an ACL rule is written.
const RIGHTS: &str = "its user lacks rights: it needs ~NAME:* by the fleet's name, +evalsha +eval +ping +time +get +set \
                      +pexpire +zadd +zcard +zcount +zremrangebyscore, +select for a database, +cluster for a cluster";

/// In words.
pub(super) fn cause(error: &RedisError) -> String {
    if let Some(words) = error.code().and_then(known).or_else(|| inner(error)) {
        return words;
    }
    match (error.kind(), error.source()) {
        // What this system says of a socket, or of a certificate.
        (ErrorKind::Io, _) if error.is_timeout() => "no answer in time".into(),
        (ErrorKind::Io, Some(system)) => tame(&system.to_string()),
        // Of a cluster, and there is the answer of one of its nodes in it.
        (ErrorKind::Io, None) if error.detail().is_some() => "none of its nodes can be used".into(),
        (ErrorKind::Io | ErrorKind::InvalidClientConfig, None) => described(error),
        (ErrorKind::AuthenticationFailed, _) => NO_LOGIN.into(),
        (ErrorKind::MasterNameNotFoundBySentinel, _) => "the sentinels know no such master that is up".into(),
        (ErrorKind::ClusterConnectionNotFound, _) => "a node of the cluster cannot be reached".into(),
        (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => "its answers make no sense: is it Redis?".into(),
        (ErrorKind::Server(ServerErrorKind::ResponseError) | ErrorKind::Extension, _) => REFUSES.into(),
        _ => error.category().to_owned(),
    }
}

const REFUSES: &str = "it refuses what a fleet asks: is it Redis 6.2 or later, or Valkey?";

/// The words for a code; none for one that a server made up.
pub(super) fn known(code: &str) -> Option<String> {
    CODES.iter().find(|(known, _)| *known == code).map(|(code, words)| format!("{words} ({code})"))
}

/// Before version 7 an error inside of a script is one of the script, and has its own code in the text: `-READONLY`. In
/// version 7.0 a right that is lacking there has no code.
fn inner(error: &RedisError) -> Option<String> {
    let text = error.detail()?;
    if text.contains("can't run this command") {
        return known("NOPERM");
    }
    text.split_whitespace().filter_map(|word| word.strip_prefix('-')).find_map(known)
}

/// What is said without a server: fixed texts, and after them the kind of the error.
fn described(error: &RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_owned()
}

/// One line, and not a long one.
pub(super) fn tame(text: &str) -> String {
    let mut tame = String::new();
    for letter in text.chars().take(LONGEST) {
        match letter.is_control() {
            true => drop(write!(tame, "{}", letter.escape_unicode())),
            false => tame.push(letter),
        }
    }
    tame
}

const LONGEST: usize = 200;

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, RedisError, Value, parse_redis_value};

    use super::cause;

    /// As a server sends it.
    #[track_caller]
    fn check(line: &str, part: &str) {
        let Ok(Value::ServerError(error)) = parse_redis_value(format!("-{line}\r\n").as_bytes()) else {
            panic!("{line} is no error")
        };
        let said = cause(&RedisError::from(error));
        assert!(said.contains(part) && !said.contains("s3cret") && !said.contains(char::is_control), "{line}: {said}");
    }

    #[test]
    fn errors_of_a_server_are_told_in_words() {
        check("READONLY You can't write against a read only replica.", "(READONLY)");
        check("OOM command not allowed when used memory > 'maxmemory'.", "(OOM)");
        check("LOADING Redis is loading the dataset in memory", "(LOADING)");
        check("MOVED 3999 127.0.0.1:6381", "redis+cluster://");
        // Redis 6.2, and 7.0.
        let script = "ERR Error running script (call to f_ab12): @user_script:3: -READONLY You can't write";
        check(script, "(READONLY)");
        check("ERR The user executing the script can't run this command or subcommand", "(NOPERM)");
        check("ERR unknown command `s3cret`", "is it Redis");
        check("S3\u{1b}[2J s3cret\u{7}", "is it Redis");
    }

    #[test]
    fn errors_of_this_side_are_told_in_words() {
        let error = RedisError::from(std::io::Error::other("a\u{1b}[2J\u{9b}b"));
        assert_eq!(cause(&error), r"a\u{1b}[2J\u{9b}b");
        assert_eq!(cause(&std::io::Error::from(std::io::ErrorKind::TimedOut).into()), "no answer in time");
        assert_eq!(cause(&(ErrorKind::Io, "no answer in time").into()), "no answer in time");
        let error = (ErrorKind::Io, "Failed to create initial connections", "s3cret".to_owned()).into();
        assert_eq!(cause(&error), "none of its nodes can be used");
    }
}
