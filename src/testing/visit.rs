//! One request, from its head to its answer.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use super::{
    charge::Charge,
    dialects::{self, Facts},
    faults::{Body, Cut, End, Fault, Pieces, Switch},
    gate::Admission,
    script::{BodyEnd, Scripted},
    shared::{Recorded, Shared},
    stats::{Counters, InFlight},
};
use crate::{clock, limit::Unit};

/// Larger request bodies are refused: 413.
const MOST_BODY: usize = 16 * 1024 * 1024;

/// Answers one request. Dropping the future (the client went away) leaves nothing behind.
pub(super) async fn answer(
    shared: Arc<Shared>,
    switch: Arc<Switch>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == "/stats" {
        return Ok(stats(&shared));
    }
    let in_flight = InFlight::enter(&shared.counters);
    let (parts, body) = request.into_parts();
    let arrived = clock::now();
    let Ok(body) = read(body).await else {
        let mut response = Response::new(Body::whole(Bytes::new(), Some(in_flight)));
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        return Ok(response);
    };
    let number = shared.arrive(arrived, || Recorded::new(&parts, &body, arrived));
    let visit = Visit { shared, switch, parts, body, in_flight };
    Ok(match &visit.shared.script {
        Some(_) => Box::pin(visit.scripted(number)).await,
        None if visit.parts.method == Method::POST && visit.parts.uri.path() == "/charge" => visit.charge().await,
        None => visit.resource().await,
    })
}

async fn read(body: Incoming) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    if http_body::Body::is_end_stream(&body) {
        return Ok(Bytes::new());
    }
    Ok(Limited::new(body, MOST_BODY).collect().await?.to_bytes())
}

/// A wait beyond all clocks is for ever.
async fn sleep(wait: Duration) {
    match clock::now().checked_add(wait) {
        _ if wait.is_zero() => {}
        Some(until) => clock::sleep_until(until).await,
        None => pending().await,
    }
}

fn stats(shared: &Shared) -> Response<Body> {
    let mut response = Response::new(Body::whole(shared.stats().to_string().into(), None));
    response.headers_mut().insert(header::DATE, shared.date());
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

struct Visit {
    shared: Arc<Shared>,
    switch: Arc<Switch>,
    parts: request::Parts,
    body: Bytes,
    in_flight: InFlight,
}

impl Visit {
    /// The limited resource.
    async fn resource(mut self) -> Response<Body> {
        let admission = self.admit();
        self.wait(admission.delay).await;
        if admission.refusal.is_some() {
            return self.refuse(&admission);
        }
        let body = self.shared.body.clone();
        match self.shared.roll() {
            Some(fault) => self.strike(fault, &admission, body).await,
            None => self.finish(StatusCode::OK, &admission, body),
        }
    }

    /// The limited resource that must not be used twice.
    async fn charge(mut self) -> Response<Body> {
        let admission = self.admit();
        if admission.refusal.is_some() {
            self.wait(admission.delay).await;
            return self.refuse(&admission);
        }
        let fault = self.shared.roll();
        // A fault that sends a 200 on its way to fail must not promise what was not done.
        let before = fault.filter(|fault| !fault.has_head() && self.shared.toss());
        if let Some(fault) = before {
            self.wait(admission.delay).await;
            return self.strike(fault, &admission, Bytes::new()).await;
        }
        let query = self.parts.uri.query().unwrap_or("");
        let charge = self.shared.ledger.charge(&self.parts.headers, query, &self.body);
        self.wait(admission.delay).await;
        let (id, replayed) = match charge {
            Charge::Refused(status) => return self.finish(status, &admission, Bytes::new()),
            Charge::Replayed(id) => (id, true),
            Charge::Executed(id, busy) => {
                // The work is done and the key free, whatever becomes of the answer.
                drop(busy);
                (id, false)
            }
        };
        let body = Bytes::from(format!(r#"{{"id":"ch_{id}","charged":true}}"#));
        let mut response = match fault {
            Some(fault) => self.strike(fault, &admission, body).await,
            None => self.finish(StatusCode::OK, &admission, body),
        };
        response.headers_mut().insert(header::CONTENT_TYPE, JSON);
        if replayed {
            response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
        }
        response
    }

    fn admit(&mut self) -> Admission {
        let mut admission = self.shared.admit(&self.parts.headers, |unit| self.cost(unit));
        self.in_flight.slot = admission.slot.take();
        admission
    }

    /// What the request takes of a unit: one request; else a header `x-<unit>`, else that field of a JSON body, else
    /// nothing.
    fn cost(&self, unit: &Unit) -> u64 {
        if *unit == Unit::Requests {
            return 1;
        }
        let named = self.parts.headers.get(format!("x-{unit}"));
        if let Some(cost) = named.and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<u32>().ok()) {
            return cost.into();
        }
        let json: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let field = json.as_ref().and_then(|json| json.get(unit.as_str())).and_then(serde_json::Value::as_u64);
        field.map_or(0, |cost| cost.min(u32::MAX.into()))
    }

    async fn wait(&self, delay: u64) {
        sleep(Duration::from_nanos(delay).saturating_add(self.shared.draw_latency())).await;
    }

    fn refuse(self, admission: &Admission) -> Response<Body> {
        let Some(refusal) = admission.refusal else { return self.finish(StatusCode::OK, admission, Bytes::new()) };
        let (status, dialect) = (self.shared.dialect.status(refusal.by > 0), self.shared.dialect);
        let (text, json) = dialects::refusal_body(dialect, refusal);
        let mut response = self.finish(status, admission, text.into());
        if json {
            response.headers_mut().insert(header::CONTENT_TYPE, JSON);
        }
        response
    }

    fn finish(self, status: StatusCode, admission: &Admission, body: Bytes) -> Response<Body> {
        let mut headers = HeaderMap::with_capacity(8);
        self.tell(admission, &mut headers);
        let mut response = Response::new(Body::whole(body, Some(self.in_flight)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    fn tell(&self, admission: &Admission, headers: &mut HeaderMap) {
        let facts = Facts { quotas: &admission.told, refusal: admission.refusal, now: admission.now };
        dialects::tell(self.shared.dialect, self.shared.retry_after, &facts, headers);
        headers.insert(header::DATE, self.shared.date());
    }

    /// A fault in place of the answer.
    async fn strike(self, fault: Fault, admission: &Admission, body: Bytes) -> Response<Body> {
        Counters::count(&self.shared.counters.faults);
        let half = body.len() / 2;
        let end = match fault {
            Fault::InternalError => return self.finish(StatusCode::INTERNAL_SERVER_ERROR, admission, Bytes::new()),
            Fault::Unavailable => return self.finish(StatusCode::SERVICE_UNAVAILABLE, admission, Bytes::new()),
            Fault::Reset => return self.cut(Some(Cut::Reset)).await,
            Fault::Close => return self.cut(Some(Cut::Close)).await,
            Fault::Stall => return self.cut(None).await,
            Fault::ResetBody => BodyEnd::ResetAfter(half),
            Fault::Truncate => BodyEnd::CloseAfter(half),
        };
        let mut headers = HeaderMap::new();
        self.tell(admission, &mut headers);
        let mut response = self.in_pieces(body, end, None);
        response.headers_mut().extend(headers);
        response
    }

    /// No answer; with `None` the connection stays open until the client leaves.
    async fn cut(self, cut: Option<Cut>) -> Response<Body> {
        if let Some(cut) = cut {
            self.switch.pull(cut);
        }
        pending().await
    }

    async fn scripted(self, number: u64) -> Response<Body> {
        let shared = Arc::clone(&self.shared);
        let Some(step) = shared.script.as_ref().and_then(|script| script.get(number)) else {
            Counters::count(&shared.counters.beyond_script);
            let mut response = Response::new(Body::whole(Bytes::new(), Some(self.in_flight)));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response.headers_mut().insert(header::DATE, shared.date());
            response.headers_mut().insert("x-beyond-script", HeaderValue::from_static("true"));
            return response;
        };
        sleep(step.delay).await;
        self.play(step).await
    }

    async fn play(self, step: &Scripted) -> Response<Body> {
        let shared = Arc::clone(&self.shared);
        let mut status = StatusCode::from_u16(step.status).unwrap_or_default();
        let mut end = step.body_end;
        if step.fault.is_some() || end != BodyEnd::Whole {
            Counters::count(&shared.counters.faults);
        }
        match step.fault {
            Some(Fault::Reset) => return self.cut(Some(Cut::Reset)).await,
            Some(Fault::Close) => return self.cut(Some(Cut::Close)).await,
            Some(Fault::Stall) => return self.cut(None).await,
            Some(Fault::InternalError) => status = StatusCode::INTERNAL_SERVER_ERROR,
            Some(Fault::Unavailable) => status = StatusCode::SERVICE_UNAVAILABLE,
            Some(Fault::ResetBody) => end = BodyEnd::ResetAfter(step.body.len() / 2),
            Some(Fault::Truncate) => end = BodyEnd::CloseAfter(step.body.len() / 2),
            None => {}
        }
        let mut response = self.in_pieces(step.body.clone(), end, step.body_rate);
        *response.status_mut() = status;
        if step.dated {
            response.headers_mut().insert(header::DATE, shared.date());
        }
        let mut named = HeaderMap::new();
        for (name, value) in step.headers_at(shared.wall()) {
            named.append(name, value);
        }
        response.headers_mut().extend(named);
        response
    }

    /// A body with a pace or a bad end, under the length of the whole.
    fn in_pieces(self, body: Bytes, end: BodyEnd, rate: Option<u32>) -> Response<Body> {
        let mut length = body.len();
        let (sent, end) = match end {
            BodyEnd::Whole if rate.is_none() => return Response::new(Body::whole(body, Some(self.in_flight))),
            BodyEnd::Whole => (length, End::Done),
            BodyEnd::StallAfter(bytes) => (bytes, End::Stall),
            BodyEnd::ResetAfter(bytes) => (bytes, End::Cut(self.switch, Cut::Reset)),
            BodyEnd::CloseAfter(bytes) => (bytes, End::Cut(self.switch, Cut::Close)),
        };
        let mut pieces = Pieces::new(body.slice(..sent.min(length)), end);
        if !pieces.is_whole() {
            // At least a byte is missing.
            length = length.max(sent.min(length) + 1);
        }
        if let Some(rate) = rate {
            pieces.pace(rate);
        }
        let mut response = Response::new(Body::pieces(pieces, Some(self.in_flight)));
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        response
    }
}
