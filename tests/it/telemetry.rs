//! Spans and metrics, as a subscriber and a recorder see them.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use abide::{Backoff, ClientBuilder, Policy};
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

use crate::memory::{Net, Reply, status};

/// A span with its fields; `parent` is the name of the span around it.
#[derive(Clone, Debug, Default)]
struct Told {
    name: &'static str,
    parent: Option<&'static str>,
    fields: BTreeMap<&'static str, String>,
    closed: bool,
}

impl Told {
    fn get(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<(u64, Told)>>>);

impl Listener {
    fn spans(&self) -> Vec<Told> {
        self.0.lock().unwrap().iter().map(|(_, told)| told.clone()).collect()
    }

    fn change(&self, id: &span::Id, change: impl FnOnce(&mut Told)) {
        let mut spans = self.0.lock().unwrap();
        if let Some((_, told)) = spans.iter_mut().rev().find(|(own, _)| *own == id.into_u64()) {
            change(told);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if attributes.metadata().target() != "abide" {
            return;
        }
        let parent = context.lookup_current().map(|span| span.name());
        let mut told = Told { name: attributes.metadata().name(), parent, ..Told::default() };
        attributes.record(&mut told);
        self.0.lock().unwrap().push((id.into_u64(), told));
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        self.change(id, |told| values.record(told));
    }

    fn on_close(&self, id: span::Id, _: Context<'_, S>) {
        self.change(&id, |told| told.closed = true);
    }
}

fn client(net: &Net) -> ClientBuilder {
    net.client().policy(Policy::default().backoff(Backoff::none()).no_budget().max_attempts(3))
}

async fn spans(replies: Vec<Reply>, url: &str) -> Vec<Told> {
    let (net, listener) = (Net::new(replies), Listener::default());
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(listener.clone()));
    let _ = client(&net).build().unwrap().get(url).send().await;
    listener.spans()
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_a_client_span_in_the_calls() {
    let url = "https://user:secret@h/p?token=secret";
    let spans = spans(vec![status(503), Reply::Reset, status(200)], url).await;
    let names: Vec<_> = spans.iter().map(|span| (span.name, span.parent)).collect();
    let attempt = ("http.client.request", Some("abide.call"));
    assert_eq!(names, [("abide.call", None), attempt, attempt, attempt]);
    let fields = |field: &str| spans.iter().map(|span| span.get(field).to_owned()).collect::<Vec<_>>();
    assert_eq!(fields("otel.kind"), ["internal", "client", "client", "client"]);
    assert_eq!(fields("http.request.resend_count"), ["", "", "1", "2"]);
    assert_eq!(fields("http.response.status_code"), ["", "503", "", "200"]);
    assert_eq!(fields("error.type"), ["", "503", "reset", ""]);
    assert_eq!(fields("otel.status_code"), ["", "ERROR", "ERROR", ""]);
    // reqwest makes a header of the user name and password.
    let shown = "https://h/p?token=REDACTED";
    assert_eq!(fields("url.full"), ["", shown, shown, shown]);
    assert_eq!((spans[1].get("server.address"), spans[1].get("server.port")), ("h", "443"));
    assert_eq!((spans[1].get("otel.name"), spans[1].get("network.protocol.version")), ("GET", "1.1"));
    assert_eq!((spans[0].get("abide.attempts"), spans[0].get("abide.stop")), ("3", "Answered"));
    assert!(spans.iter().all(|span| span.closed));
    assert!(!format!("{spans:?}").contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn hops_are_resends_and_failures_have_a_type() {
    let hop = status(302).header("location", "/b");
    let spans = spans(vec![hop, Reply::Refuse, Reply::Refuse, Reply::Refuse], "https://h/a").await;
    let fields = |field: &str| spans.iter().map(|span| span.get(field).to_owned()).collect::<Vec<_>>();
    assert_eq!(fields("http.request.resend_count"), ["", "", "1", "2", "3"]);
    assert_eq!(fields("error.type"), ["connect", "", "connect", "connect", "connect"]);
    assert_eq!(spans[0].get("otel.status_code"), "ERROR");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_no_error() {
    let (net, listener) = (Net::new([Reply::Stall]), Listener::default());
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(listener.clone()));
    let call = client(&net).build().unwrap().get("https://h/").send();
    tokio::time::timeout(Duration::from_secs(1), call).await.unwrap_err();
    let spans = listener.spans();
    assert_eq!(spans.len(), 2);
    for span in spans {
        assert!(span.closed);
        assert_eq!((span.get("error.type"), span.get("otel.status_code")), ("", ""));
    }
}

#[tokio::test(start_paused = true)]
async fn methods_that_nobody_knows_are_other() {
    let (net, listener) = (Net::new([status(200)]), Listener::default());
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(listener.clone()));
    let method = http::Method::from_bytes(b"BREW").unwrap();
    client(&net).build().unwrap().request(method, "https://h/").send().await.unwrap();
    let span = &listener.spans()[1];
    let told = ["otel.name", "http.request.method", "http.request.method_original"].map(|field| span.get(field));
    assert_eq!(told, ["HTTP", "_OTHER", "BREW"]);
}

/// Everything measured, one line for each value.
#[derive(Clone, Default)]
pub(crate) struct Book(pub(crate) Arc<Mutex<Vec<String>>>);

pub(crate) struct Line(Book, String);

impl Line {
    fn write(&self, value: impl Debug) {
        self.0.0.lock().unwrap().push(format!("{} {value:?}", self.1));
    }
}

impl CounterFn for Line {
    fn increment(&self, value: u64) {
        self.write(value);
    }
    fn absolute(&self, value: u64) {
        self.write(value);
    }
}

impl GaugeFn for Line {
    fn increment(&self, value: f64) {
        self.write(value);
    }
    fn decrement(&self, value: f64) {
        self.write(value);
    }
    fn set(&self, value: f64) {
        self.write(value);
    }
}

impl HistogramFn for Line {
    fn record(&self, value: f64) {
        self.write(value);
    }
}

impl Book {
    fn line(&self, key: &Key) -> Arc<Line> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Line(self.clone(), format!("{} {}", key.name(), labels.join(","))))
    }
}

impl metrics::Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.line(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.line(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.line(key))
    }
}

#[tokio::test(start_paused = true)]
async fn waits_and_requests_are_measured() {
    let book = Book::default();
    let _guard = metrics::set_default_local_recorder(&book);
    let refused = status(429).header("retry-after", "2").after(Duration::from_millis(500));
    let net = Net::new([refused, Reply::Reset, status(200)]);
    let client = client(&net).quota(abide::Quota::per_minute(60)).build().unwrap();
    client.get("https://h/?token=secret").send().await.unwrap();
    let lines = book.0.lock().unwrap().clone();
    let of = "http.request.method=GET,server.address=h,server.port=443,url.scheme=https";
    let answered = |status| format!("{of},http.response.status_code={status},network.protocol.version=1.1");
    let expected = [
        format!("http.client.request.duration {},error.type=429 0.5", answered(429)),
        format!("http.client.request.duration {of},error.type=reset 0.0"),
        format!("http.client.request.duration {} 0.0", answered(200)),
        "abide.calls server.address=h,abide.stop=answered 1".to_owned(),
        "abide.retries server.address=h 2".to_owned(),
        "abide.throttled server.address=h 1".to_owned(),
    ];
    assert_eq!(lines[..6], expected);
    assert!(lines[6].starts_with("abide.wait.duration server.address=h,abide.wait=server 2"), "{lines:#?}");
    for name in ["abide.limiter.left", "abide.limiter.waiting", "abide.limiter.in_flight", "abide.limiter.paused"] {
        assert!(lines.iter().any(|line| line.starts_with(name)), "{name} in {lines:#?}");
    }
    assert!(!lines.join("\n").contains("secret"));
}
