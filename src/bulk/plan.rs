//! What a run would do: its requests with secrets masked, and how long the known limits make it take.

use std::{collections::HashMap, io, time::Duration};

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    Job, results,
    table::{Known, Table},
};
use crate::{Client, Key, Quota, Unit};

/// What a run would do. Made by [`Bulk::plan`](super::Bulk::plan).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Rows that would be sent.
    pub rows: u64,
    /// Rows that have their result.
    pub done: u64,
    /// Rows that make no sense.
    pub invalid: u64,
    /// Of the rows that would be sent: those that failed in an earlier run, and may be executed twice.
    pub repeats: u64,
    /// How long the configured limits make it take; `None`: there are none.
    pub estimate: Option<Duration>,
}

/// One request as it would be sent. Credentials are masked, keys that the run makes are not there yet.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Resolved {
    /// The name of the job.
    pub id: String,
    /// Its place in the input, from 1.
    pub line: u64,
    /// GET, say.
    pub method: String,
    /// Without user name and password, and without the values of a query that look secret.
    pub url: String,
    /// Default headers included.
    pub headers: std::collections::BTreeMap<String, String>,
    /// If it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// As the job has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<Box<RawValue>>,
    /// Why it cannot be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The sums of a plan in the making.
#[derive(Default)]
pub(super) struct Planning {
    plan: Plan,
    costs: HashMap<Key, u64>,
}

/// More keys are planned as one.
const MOST_KEYS: usize = 100_000;

impl Planning {
    /// Counts a row; whether it would be sent.
    pub(super) fn add(&mut self, client: &Client, job: &Job, known: Known, again: bool) -> bool {
        let repeats = matches!(known, Known::Result(ended) if again && ended.maybe_executed);
        self.plan.repeats += u64::from(repeats);
        match (known, &job.request) {
            (Known::Result(ended), _) if ended.ok || !again => {
                self.plan.done += 1;
                return false;
            }
            (_, Err(_)) => self.plan.invalid += 1,
            (_, Ok(request)) => {
                self.plan.rows += 1;
                let key = job.key.unwrap_or_else(|| client.key_of(request));
                let key = if self.costs.len() < MOST_KEYS { key } else { Key::from("") };
                let stated = job.units.iter().find(|(unit, _)| *unit == Unit::Requests);
                *self.costs.entry(key).or_default() += stated.map_or(1, |(_, cost)| u64::from(*cost));
            }
        }
        true
    }

    pub(super) fn plan(self, quotas: &[Quota]) -> Plan {
        let busiest = self.costs.values().copied().max().unwrap_or(0);
        let times = quotas.iter().filter(|quota| *quota.unit_ref() == Unit::Requests).map(|quota| {
            let after_burst = busiest.saturating_sub(u64::from(quota.burst_units()));
            let nanos = quota.per().as_nanos().saturating_mul(u128::from(after_burst)) / u128::from(quota.units());
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        });
        Plan { estimate: times.max(), ..self.plan }
    }
}

/// What the results say, without touching them.
pub(super) fn table(path: &std::path::Path) -> io::Result<Table> {
    match std::fs::File::open(path) {
        Ok(mut file) => results::table(&mut file).map_err(|error| results::named(path, &error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Table::default()),
        Err(error) => Err(results::named(path, &error)),
    }
}

/// The request of a job as the client would send it.
pub(super) fn resolved(client: &Client, job: &Job, line: u64) -> Resolved {
    let mut resolved = Resolved {
        id: job.id.clone(),
        line,
        method: String::new(),
        url: String::new(),
        headers: std::collections::BTreeMap::new(),
        body: None,
        meta: job.meta.clone(),
        error: None,
    };
    match &job.request {
        Err(why) => resolved.error = Some(why.clone()),
        Ok(request) => {
            resolved.method = request.method().to_string();
            resolved.url = masked_url(request.url());
            for (name, value) in client.defaults().iter().chain(request.headers()) {
                let secret = client.is_secret(name, value) || looks_secret(name.as_str());
                let text = if secret { "***".into() } else { String::from_utf8_lossy(value.as_bytes()).into_owned() };
                resolved.headers.insert(name.to_string(), text);
            }
            let body = request.body().and_then(reqwest::Body::as_bytes);
            resolved.body = body.map(|body| String::from_utf8_lossy(body).into_owned());
        }
    }
    resolved
}

/// Names under which credentials travel.
const SECRET: [&str; 9] = ["key", "token", "secret", "password", "passwd", "signature", "sig", "auth", "cookie"];

fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name != "idempotency-key"
        && name.split(['-', '_', '.']).any(|word| SECRET.iter().any(|secret| word.ends_with(secret)))
}

fn masked_url(url: &reqwest::Url) -> String {
    let mut masked = url.clone();
    if !url.username().is_empty() || url.password().is_some() {
        // Fails only for URLs that cannot have them.
        let _ = masked.set_username("***").and_then(|()| masked.set_password(None));
    }
    if url.query().is_some() {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let shown = |(name, value): &(String, String)| match looks_secret(name) {
            true => (name.clone(), "***".to_owned()),
            false => (name.clone(), value.clone()),
        };
        masked.query_pairs_mut().clear().extend_pairs(pairs.iter().map(shown));
    }
    masked.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_url_are_masked() {
        let url = reqwest::Url::parse("https://me:pw@h.example/p?api_key=s1&page=2&access_token=s3").unwrap();
        assert_eq!(masked_url(&url), "https://***@h.example/p?api_key=***&page=2&access_token=***");
    }

    #[test]
    fn the_slowest_limit_of_the_busiest_key_decides() {
        let client = Client::new();
        let mut planning = Planning::default();
        for n in 0..100 {
            let url = if n % 4 == 0 { "http://a.example/" } else { "http://b.example/" };
            let job = Job::new("x", reqwest::Request::new(http::Method::GET, url.parse().unwrap()));
            planning.add(&client, &job, Known::No, false);
        }
        let quotas = [Quota::per_second(1000), Quota::bucket(10, Duration::from_secs(1)).burst(5)];
        let plan = planning.plan(&quotas);
        assert_eq!((plan.rows, plan.estimate), (100, Some(Duration::from_secs(7))));
    }
}
