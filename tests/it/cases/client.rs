//! The client and the requests of a case.

use std::time::Duration;

use abide::{Backoff, Client, NonIdempotent, Policy, Quota, RequestBuilder, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::case::{AutoKey, BodySpec, Bucket, ClassifyBody, Config, KeySpec, Meaning, ReadBody, RequestSpec};
use crate::support::{clock, net::Network, record::TAG};

/// Larger than any body of a case.
pub(crate) const BUFFER: usize = 1 << 26;

/// A fresh client for one case.
pub(crate) fn client(network: &Network, config: &Config) -> Result<Client, String> {
    let mut builder = Client::builder().http(network.http()).policy(policy(config)?);
    if let Some(bucket) = config.limiter {
        builder = builder.quota(quota(bucket));
    }
    if let Some(concurrency) = config.concurrency {
        builder = builder.max_in_flight(concurrency);
    }
    if let Some(redirects) = config.redirects {
        builder = builder.redirects(redirects);
    }
    let names = config.sensitive_headers.iter().map(|name| name.parse::<HeaderName>());
    let names = names.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    builder.sensitive_headers(names).build().map_err(|error| format!("no client: {error}"))
}

/// The quota of a case.
pub(crate) fn quota(bucket: Bucket) -> Quota {
    let quota = Quota::bucket(bucket.rate, clock::ms(bucket.per_ms));
    match bucket.burst {
        Some(burst) => quota.burst(burst),
        None => quota,
    }
}

pub(crate) fn policy(config: &Config) -> Result<Policy, String> {
    let mut policy = Policy::default()
        .max_attempts(config.max_attempts)
        .backoff(Backoff::full_jitter(clock::ms(config.base_ms), clock::ms(config.cap_ms)))
        .max_server_wait(config.max_server_wait_ms.map_or(Duration::MAX, clock::ms))
        .poll_202(config.poll_202)
        .no_budget();
    policy = match config.deadline_ms {
        Some(deadline) => policy.deadline(clock::ms(deadline)),
        None => policy.no_deadline(),
    };
    if let Some(timeout) = config.attempt_timeout_ms {
        policy = policy.attempt_timeout(clock::ms(timeout));
    }
    if config.retry_non_idempotent {
        policy = policy.retry_non_idempotent(NonIdempotent::Always);
    }
    if let Some(statuses) = &config.retry_statuses {
        policy = policy.retry_statuses(statuses.iter().copied());
    }
    policy = match &config.rate_limit_403 {
        None | Some(Value::Bool(false)) => policy,
        Some(Value::String(way)) if way == "github" => policy.rate_limit_403(true),
        Some(other) => return Err(format!("rate_limit_403: {other}")),
    };
    if let Some(classify) = config.classify_body.clone() {
        check_classify(&classify)?;
        policy = policy.classify_body(BUFFER, move |status, _headers, body| {
            (status.is_success() && is_failure(&classify, body)).then(|| verdict(classify.meaning))
        });
    }
    Ok(policy)
}

fn verdict(meaning: Meaning) -> Verdict {
    match meaning {
        Meaning::Retryable => Verdict::Retry,
        Meaning::RateLimited => Verdict::Throttled,
        Meaning::NotRetryable => Verdict::Stop,
    }
}

fn check_classify(classify: &ClassifyBody) -> Result<(), String> {
    let ClassifyBody { contains, json_pointer, equals, .. } = classify;
    let whole = json_pointer.is_some() == equals.is_some() && (contains.is_some() || json_pointer.is_some());
    if whole { Ok(()) } else { Err(format!("classify_body says too little: {classify:?}")) }
}

fn is_failure(classify: &ClassifyBody, body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let contains = classify.contains.iter().flatten().any(|wanted| text.contains(wanted));
    let equals = || {
        let json: Value = serde_json::from_slice(body).ok()?;
        let value = json.pointer(classify.json_pointer.as_deref()?)?;
        Some(classify.equals.iter().flatten().any(|wanted| wanted == value))
    };
    contains || equals().unwrap_or(false)
}

/// The key that the caller of call number `call` gives.
pub(crate) fn callers_key(call: usize) -> String {
    format!("key-of-the-caller-{call}")
}

/// The body that a request sends.
pub(crate) fn body_of(spec: &RequestSpec) -> Vec<u8> {
    match spec.body {
        BodySpec::None => Vec::new(),
        BodySpec::Bytes | BodySpec::Stream => (b'a'..=b'z').cycle().take(spec.body_bytes.unwrap_or(64)).collect(),
    }
}

/// That body, as it is given to a request.
pub(crate) fn sent_body(spec: &RequestSpec) -> Option<reqwest::Body> {
    match spec.body {
        BodySpec::None => None,
        BodySpec::Bytes => Some(body_of(spec).into()),
        BodySpec::Stream => {
            let parts: Vec<Result<Vec<u8>, std::io::Error>> =
                body_of(spec).chunks(24).map(|part| Ok(part.to_vec())).collect();
            Some(reqwest::Body::wrap_stream(futures_util::stream::iter(parts)))
        }
    }
}

/// The request of call number `call`, ready to be sent.
pub(crate) fn request(
    client: &Client,
    url: &str,
    spec: &RequestSpec,
    read_body: ReadBody,
    call: usize,
) -> Result<RequestBuilder, String> {
    let method = reqwest::Method::from_bytes(spec.method.as_bytes()).map_err(|error| error.to_string())?;
    let mut request = client.request(method, url).header(TAG, call.to_string());
    for (name, value) in &spec.headers {
        request = request.header(name, value);
    }
    request = match spec.idempotency_key {
        KeySpec::Caller(false) => request,
        KeySpec::Caller(true) => request.idempotency_key(callers_key(call)),
        KeySpec::Sdk(AutoKey::Auto) => request.auto_idempotency_key(),
    };
    if let Some(body) = sent_body(spec) {
        request = request.body(body);
    }
    if !spec.header_provider.is_empty() {
        let fields = spec.header_provider.clone();
        request = request.headers_with(move |attempt| std::future::ready(provided(&fields, attempt)));
    }
    Ok(if read_body == ReadBody::Buffer { request.buffered(BUFFER) } else { request })
}

fn provided(fields: &[(String, String)], attempt: u32) -> Result<HeaderMap, Box<dyn std::error::Error + Send + Sync>> {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let value = value.replace("{n}", &attempt.to_string());
        headers.insert(name.parse::<HeaderName>()?, value.parse::<HeaderValue>()?);
    }
    Ok(headers)
}
