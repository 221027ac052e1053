//! One line of the input as a job.

use std::{borrow::Cow, collections::BTreeMap};

use http::{HeaderMap, HeaderName, HeaderValue, Method, header::CONTENT_TYPE};
use reqwest::{Request, Url};
use serde::Deserialize;
use serde_json::{Number, Value, value::RawValue};

use super::{Job, hash};
use crate::Unit;

/// The form of a row. A field that is not known is a mistake: one that is misspelt must not go unseen.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form<'a> {
    id: Option<Id>,
    method: Option<Cow<'a, str>>,
    url: Cow<'a, str>,
    #[serde(default)]
    headers: BTreeMap<String, Value>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    body_file: Option<String>,
    cost: Option<u32>,
    #[serde(default)]
    units: BTreeMap<String, u32>,
    idempotency_key: Option<String>,
    meta: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Number(Number),
}

/// Where a row stands: what names it, and its id if it has none.
struct Place {
    name: String,
    id: String,
    /// Files that it names are on this machine.
    here: bool,
}

impl Place {
    fn of_line(line: u64, text: &[u8]) -> Self {
        Self { name: format!("line {line}"), id: default_id(line, text), here: true }
    }

    fn invalid(&self, id: &str, why: &str) -> Job {
        Job::invalid(id, format!("{}: {why}", self.name))
    }
}

/// The row of a line that is not empty.
pub(super) fn job(line: u64, text: &[u8]) -> Job {
    at(&Place::of_line(line, text), text).line(line)
}

/// A row that cannot be sent.
pub(super) fn broken(line: u64, text: &[u8], why: &str) -> Job {
    let place = Place::of_line(line, text);
    place.invalid(&place.id, why).line(line)
}

/// The row of an entry of a stream.
#[cfg(feature = "redis")]
pub(super) fn entry(entry: &str, text: &[u8]) -> Job {
    at(&Place { name: format!("entry {entry}"), id: entry.to_owned(), here: false }, text)
}

/// An entry that cannot be sent.
#[cfg(feature = "redis")]
pub(super) fn broken_entry(entry: &str, why: &str) -> Job {
    Job::invalid(entry, format!("entry {entry}: {why}"))
}

/// A line as it would be sent from elsewhere.
#[cfg(feature = "redis")]
pub(super) fn elsewhere(line: u64, text: &[u8]) -> Job {
    at(&Place { here: false, ..Place::of_line(line, text) }, text)
}

fn at(place: &Place, text: &[u8]) -> Job {
    let text = text.trim_ascii();
    let job = match text.first() {
        Some(b'{') => from_json(place, text),
        _ => bare(text).map(|request| Job::new(&place.id, request)),
    };
    job.unwrap_or_else(|why| place.invalid(&place.id, &why))
}

/// The line number and a hash of the line.
fn default_id(line: u64, text: &[u8]) -> String {
    format!("{line}-{:08x}", hash(text) & 0xffff_ffff)
}

fn bare(text: &[u8]) -> Result<Request, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    if !text.starts_with("http://") && !text.starts_with("https://") {
        return Err("neither a JSON object nor a URL".into());
    }
    Ok(Request::new(Method::GET, url(text)?))
}

fn url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("url: {error}"))?;
    match matches!(url.scheme(), "http" | "https") {
        true => Ok(url),
        false => Err("url: must be http or https".into()),
    }
}

fn from_json(place: &Place, text: &[u8]) -> Result<Job, String> {
    let form: Form<'_> = serde_json::from_slice(text).map_err(|error| match error.classify() {
        // Its own line number would be 1.
        serde_json::error::Category::Data => without_value(&error.to_string()),
        _ => format!("no JSON at column {}", error.column()),
    })?;
    let id = match &form.id {
        None => place.id.clone(),
        Some(Id::Text(id)) => id.clone(),
        Some(Id::Number(id)) => id.to_string(),
    };
    if form.body_file.is_some() && !place.here {
        return Ok(place.invalid(&id, "body_file: a row of a stream is sent from any machine, its body must be in it"));
    }
    match request(&form) {
        Ok(request) => Ok(finished(Job::new(id, request), form)),
        Err(why) => Ok(place.invalid(&id, &why)),
    }
}

/// serde's message without the value that it does not like: that may be a secret in the wrong place.
fn without_value(message: &str) -> String {
    let wrong = ["invalid type: ", "invalid value: "].iter().find(|start| message.starts_with(**start));
    match (wrong, message.rsplit_once(", expected ")) {
        (Some(start), Some((found, expected))) => {
            let kind = found[start.len()..].split([' ', '`', '"']).next().unwrap_or_default();
            format!("{start}{kind}, expected {expected}")
        }
        (Some(start), None) => start.trim_end_matches([':', ' ']).to_owned(),
        (None, _) => message.to_owned(),
    }
}

fn finished(mut job: Job, form: Form<'_>) -> Job {
    for (unit, units) in form.units {
        job = job.units(unit_of(unit), units);
    }
    if let Some(cost) = form.cost {
        job = job.cost(cost);
    }
    if let Some(key) = form.idempotency_key {
        job = job.idempotency_key(key);
    }
    match form.meta {
        Some(meta) => job.meta(meta),
        None => job,
    }
}

fn unit_of(name: String) -> Unit {
    match name.as_str() {
        "requests" => Unit::Requests,
        "tokens" => Unit::Tokens,
        "bytes" | "content-bytes" => Unit::Bytes,
        _ => Unit::Other(name),
    }
}

fn request(form: &Form<'_>) -> Result<Request, String> {
    let method = match &form.method {
        None => Method::GET,
        Some(name) => name.to_ascii_uppercase().parse().map_err(|_no_token| "method: not a token".to_owned())?,
    };
    let mut request = Request::new(method, url(&form.url)?);
    let (body, is_json) = body(form)?;
    if let Some(body) = body {
        *request.body_mut() = Some(body.into());
    }
    if is_json {
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, value) in &form.headers {
        header(request.headers_mut(), name, value)?;
    }
    Ok(request)
}

/// The body, and whether it is JSON.
fn body(form: &Form<'_>) -> Result<(Option<Vec<u8>>, bool), String> {
    match (form.body.map(RawValue::get), &form.body_file) {
        (Some(_), Some(_)) => Err("both body and body_file".into()),
        (None, Some(path)) => match std::fs::read(path) {
            Ok(body) => Ok((Some(body), false)),
            Err(error) => Err(format!("body_file: {path}: {error}")),
        },
        (None, None) => Ok((None, false)),
        (Some(text), None) if text.starts_with('"') => {
            let text: String = serde_json::from_str(text).map_err(|error| format!("body: {error}"))?;
            Ok((Some(text.into_bytes()), false))
        }
        (Some(json), None) => Ok((Some(json.as_bytes().to_vec()), true)),
    }
}

fn header(headers: &mut HeaderMap, name: &str, value: &Value) -> Result<(), String> {
    let wrong = || format!("header {name:?}: no header");
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_no_name| wrong())?;
    headers.remove(&parsed);
    let values = match value {
        Value::Array(values) => values.as_slice(),
        one => std::slice::from_ref(one),
    };
    for value in values {
        let text = match value {
            Value::String(text) => Cow::Borrowed(text.as_str()),
            Value::Number(number) => Cow::Owned(number.to_string()),
            _ => return Err(format!("header {name:?}: must be a text")),
        };
        headers.append(parsed.clone(), HeaderValue::from_str(&text).map_err(|_no_value| wrong())?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_requests() {
        let job = job(3, br#"{"id":7,"method":"post","url":"http://h.example/a","body":{"b": 1},"cost":2,"meta":[1]}"#);
        let request = job.request().unwrap();
        assert_eq!((job.id(), request.method(), request.url().path()), ("7", &Method::POST, "/a"));
        assert_eq!(request.body().unwrap().as_bytes(), Some(&br#"{"b": 1}"#[..]));
        assert_eq!(request.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(job.units, [(Unit::Requests, 2)]);
    }

    #[track_caller]
    fn check(text: &str, why: &str) {
        let job = job(4, text.as_bytes());
        let said = job.request().unwrap_err();
        assert!(said.starts_with("line 4: ") && said.contains(why), "{said}");
    }

    #[test]
    fn rows_that_make_no_sense_say_why() {
        check("nonsense", "neither");
        check("{\"url\":", "no JSON");
        check(r#"{"url":"http://h.example/","header":{}}"#, "unknown field `header`");
        check(r#"{"url":"ftp://h.example/"}"#, "http or https");
        check(r#"{"url":"http://h.example/","headers":{"a b":"c"}}"#, "a b");
        check(r#"{"url":"http://h.example/","body":1,"body_file":"x"}"#, "both");
        check(r#"{"url":"http://h.example/","body_file":"/nowhere/x"}"#, "/nowhere/x");
    }

    #[test]
    fn values_in_the_wrong_place_are_not_told() {
        let rows = [
            (r#""headers":"Authorization: Bearer s3cret, expected""#, "invalid type: string, expected a map"),
            (r#""idempotency_key":53213"#, "invalid type: integer, expected a string"),
            (r#""cost":"s3cret""#, "invalid type: string, expected u32"),
            (r#""cost":-53213"#, "invalid value: integer, expected u32"),
            (r#""units":"s3cret""#, "invalid type: string, expected a map"),
        ];
        for (field, why) in rows {
            let row = format!(r#"{{"url":"http://h.example/",{field}}}"#);
            check(&row, why);
            let said = job(4, row.as_bytes()).request().unwrap_err().to_owned();
            assert!(!said.contains("3cret") && !said.contains("53213"), "{said}");
        }
    }
}
