//! A raw response as `curl -i` prints it: status line, header lines, a blank line, the body. Several heads in a row are
//! what came before the answer (100 Continue, redirects), so the last one counts.

use std::fmt;

use abide::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// More header lines than any client takes.
const MAX_LINES: usize = 1000;

/// The last head of the input and what follows it.
#[derive(Debug)]
pub(crate) struct Head<'i> {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: &'i [u8],
}

/// Why an input is no response head, and in which line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadHead {
    line: usize,
    what: &'static str,
}

impl fmt::Display for BadHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl<'i> Head<'i> {
    pub(crate) fn parse(input: &'i [u8]) -> Result<Self, BadHead> {
        let mut lines = Lines { rest: input, number: 0 };
        loop {
            let head = Self::one(&mut lines)?;
            let answers = lines.rest.trim_ascii_start();
            if !answers.starts_with(b"HTTP/") {
                return Ok(Self { body: lines.rest, ..head });
            }
        }
    }

    fn one(lines: &mut Lines<'i>) -> Result<Self, BadHead> {
        let first = loop {
            let line = lines.next().ok_or_else(|| lines.bad("expected a status line such as HTTP/1.1 429"))?;
            if !line.trim_ascii().is_empty() {
                break line;
            }
        };
        let status = status(first).ok_or_else(|| lines.bad("expected a status line such as HTTP/1.1 429"))?;
        let mut headers = HeaderMap::new();
        while let Some(line) = lines.next().filter(|line| !line.trim_ascii().is_empty()) {
            if headers.len() >= MAX_LINES {
                return Err(lines.bad("more than 1000 header lines"));
            }
            let (name, value) = header(line).map_err(|what| lines.bad(what))?;
            headers.append(name, value);
        }
        Ok(Self { status, headers, body: b"" })
    }
}

/// `HTTP/1.1 429 Too Many Requests`, `HTTP/2 429`.
fn status(line: &[u8]) -> Option<StatusCode> {
    let mut words = line.strip_prefix(b"HTTP/")?.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.next().filter(|version| version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))?;
    StatusCode::from_bytes(words.next()?).ok()
}

fn header(line: &[u8]) -> Result<(HeaderName, HeaderValue), &'static str> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or("expected a header such as Retry-After: 30")?;
    let (name, value) = line.split_at(colon);
    let name = HeaderName::from_bytes(name).map_err(|_name| "expected a header name before the colon")?;
    let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
    Ok((name, value.map_err(|_value| "a header value with control characters")?))
}

/// Lines by LF or CRLF, counted.
struct Lines<'i> {
    rest: &'i [u8],
    number: usize,
}

impl<'i> Lines<'i> {
    fn next(&mut self) -> Option<&'i [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        self.number = self.number.saturating_add(1);
        let end = self.rest.iter().position(|byte| *byte == b'\n').unwrap_or(self.rest.len());
        let (line, rest) = self.rest.split_at(end);
        self.rest = rest.get(1..).unwrap_or_default();
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn bad(&self, what: &'static str) -> BadHead {
        BadHead { line: self.number.max(1), what }
    }
}
