//! The request of a call, as it stands: it makes each attempt's request and changes with each hop.

use std::{
    fmt,
    future::Future,
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method,
    header::{
        ACCEPT, ACCEPT_LANGUAGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE,
        HOST, IF_MATCH, IF_UNMODIFIED_SINCE, SET_COOKIE, TRANSFER_ENCODING, USER_AGENT,
    },
};
use http_body_util::BodyExt;
use reqwest::{Body, Request, Response, Url};

use crate::{
    Error, Key, Policy, Unit,
    call::{Call, Onward},
    client::Inner,
    error::BoxError,
    headers::Hints,
    key_by::{self, same_origin},
    redirect::{self, Hop},
    repeat::Repeat,
};

pub(crate) type HeadersWith =
    Arc<dyn Fn(u32) -> Pin<Box<dyn Future<Output = Result<HeaderMap, BoxError>> + Send>> + Send + Sync>;
pub(crate) type OnAttempt = Arc<dyn Fn(&mut Request, u32) + Send + Sync>;
pub(crate) type BodyWith = Arc<dyn Fn() -> Body + Send + Sync>;

/// What one request overrides: mostly nothing, which takes no room while the request is moved.
#[derive(Clone, Default)]
pub(crate) struct Options(Option<Box<Overrides>>);

/// See [`Options`].
#[derive(Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) key: Option<Key>,
    pub(crate) units: Vec<(Unit, u32)>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) policy: Option<Arc<Policy>>,
    pub(crate) buffered: Option<usize>,
    pub(crate) body_with: Option<BodyWith>,
    pub(crate) on_attempt: Option<OnAttempt>,
    pub(crate) headers_with: Option<HeadersWith>,
    pub(crate) idempotency_key: Option<KeyFrom>,
    pub(crate) idempotent: bool,
    pub(crate) escort: Option<Arc<dyn Escort>>,
}

impl Overrides {
    const NONE: &'static Self = &Self {
        key: None,
        units: Vec::new(),
        deadline: None,
        policy: None,
        buffered: None,
        body_with: None,
        on_attempt: None,
        headers_with: None,
        idempotency_key: None,
        idempotent: false,
        escort: None,
    };
}

impl From<Overrides> for Options {
    fn from(overrides: Overrides) -> Self {
        Self(Some(Box::new(overrides)))
    }
}

impl Deref for Options {
    type Target = Overrides;

    fn deref(&self) -> &Overrides {
        self.0.as_deref().unwrap_or(Overrides::NONE)
    }
}

/// Only for what is set: it makes room.
impl DerefMut for Options {
    fn deref_mut(&mut self) -> &mut Overrides {
        self.0.get_or_insert_default()
    }
}

/// Whoever runs many calls at once: told where each of them stands.
pub(crate) trait Escort: Send + Sync {
    /// It asks the limiter.
    fn asks(&self);
    /// The limiter let it through: it goes on the wire when this is ready.
    fn boards(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    /// It goes on the wire.
    fn sent(&self);
    /// It was answered or failed.
    fn landed(&self, throttled: bool);
}

#[derive(Clone, Debug)]
pub(crate) enum KeyFrom {
    Caller(String),
    Chance,
}

impl Overrides {
    /// States the units of one kind; zero states that none is used.
    pub(crate) fn state(&mut self, unit: Unit, units: u32) {
        if self.units.is_empty() {
            self.units.extend_from_slice(&ONE_REQUEST);
        }
        match self.units.iter_mut().find(|(stated, _)| *stated == unit) {
            Some((_, stated)) => *stated = units,
            None => self.units.push((unit, units)),
        }
    }
}

/// What a call uses that states nothing.
static ONE_REQUEST: [(Unit, u32); 1] = [(Unit::Requests, 1)];

/// A multipart body of known length up to this is collected, so that it can be sent again.
const COLLECTED: u64 = 1024 * 1024;

/// The request of a call.
pub(crate) struct Outgoing {
    template: Request,
    payload: Payload,
    /// What goes on the wire next, if it is not as the template.
    touched: Option<Box<Request>>,
    pub(crate) options: Options,
    /// The limiter key of this hop.
    pub(crate) key: Key,
    /// What the idempotency header must stay; `None`: the call is not keyed.
    keyed: Option<HeaderValue>,
    /// Still on the origin that the call was meant for.
    home: bool,
    hops: u32,
    polling: bool,
    visited: Vec<(Method, Url)>,
}

enum Payload {
    /// In the template: nothing, or bytes that all attempts share.
    Shared,
    /// A stream: sent once.
    Once(Option<Body>),
    /// Made anew for each attempt.
    Made(BodyWith),
}

impl Outgoing {
    pub(crate) fn new(client: &Inner, mut template: Request, options: Options) -> Result<Self, Error> {
        if !matches!(template.url().scheme(), "http" | "https") || !template.url().has_host() {
            return Err(Error::builder("the URL must be http or https, with a host").with_url(template.url()));
        }
        add_defaults(template.headers_mut(), &client.defaults);
        let name = client.scheme.name();
        match &options.idempotency_key {
            Some(KeyFrom::Caller(key)) => drop(template.headers_mut().insert(name, client.scheme.value(key)?)),
            Some(KeyFrom::Chance) => drop(template.headers_mut().insert(name, client.scheme.fresh()?)),
            None => {}
        }
        let payload = match (&options.body_with, template.body().is_some_and(|body| body.as_bytes().is_none())) {
            (Some(make), _) => Payload::Made(Arc::clone(make)),
            (None, true) => Payload::Once(template.body_mut().take()),
            (None, false) => Payload::Shared,
        };
        let key = options.key.unwrap_or_else(|| key_by::key(&client.key_by, &template, &client.credentials));
        let keyed = client.scheme.key_of(template.headers())?;
        Ok(Self {
            template,
            payload,
            touched: None,
            options,
            key,
            keyed,
            home: true,
            hops: 0,
            polling: false,
            visited: Vec::new(),
        })
    }

    pub(crate) fn method(&self) -> &Method {
        self.template.method()
    }

    pub(crate) fn url(&self) -> &Url {
        self.template.url()
    }

    pub(crate) fn is_home(&self) -> bool {
        self.home
    }

    pub(crate) fn units(&self) -> &[(Unit, u32)] {
        match self.options.units.is_empty() {
            true => &ONE_REQUEST,
            false => &self.options.units,
        }
    }

    /// What makes it safe to repeat, as it stands.
    pub(crate) fn repeat(&self, client: &Inner) -> Repeat {
        let headers = self.template.headers();
        Repeat {
            idempotent: self.options.idempotent || is_repeatable(self.method(), headers),
            key_lifetime: self.keyed.as_ref().map(|_| client.scheme.good_for()),
            retry_conflict: client.scheme.retries_conflict(),
            replayable: self.is_replayable(),
        }
    }

    /// Collects a small multipart body, so that it can be sent again.
    ///
    /// # Errors
    /// A part could not be read.
    pub(crate) async fn collect(&mut self) -> Result<(), Error> {
        let Payload::Once(body @ Some(_)) = &mut self.payload else { return Ok(()) };
        let headers = self.template.headers();
        let is_form = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"multipart/form-data"));
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if is_form
            && length.is_some_and(|length| length <= COLLECTED)
            && let Some(stream) = body.take()
        {
            let bytes: Bytes = stream.collect().await.map_err(|error| Error::transport(error.into()))?.to_bytes();
            *self.template.body_mut() = Some(bytes.into());
            self.payload = Payload::Shared;
        }
        Ok(())
    }

    /// The body is with the transport, which has it only once.
    #[cfg(any(feature = "tower", feature = "middleware"))]
    pub(crate) fn send_once(&mut self) {
        self.payload = Payload::Once(Some(Body::default()));
    }

    /// Whether the caller's code makes the body, which is to be done before anything is committed.
    pub(crate) fn makes_body(&self) -> bool {
        matches!(self.payload, Payload::Made(_))
    }

    /// The request of the next attempt or hop, as `touch` leaves it: [`wire`](Self::wire) gives it.
    pub(crate) fn touch(&mut self, client: &Inner, touch: impl FnOnce(&mut Request)) -> Result<(), Error> {
        let mut request = self.wire();
        touch(&mut request);
        self.check(&request, client)?;
        self.touched = Some(Box::new(request));
        Ok(())
    }

    /// The next attempt or hop, as far as it shows in logs.
    pub(crate) fn shown(&self) -> &Request {
        self.touched.as_deref().unwrap_or(&self.template)
    }

    /// The request of the next attempt or hop, made as late as can be. A stream goes with it for good.
    pub(crate) fn wire(&mut self) -> Request {
        if let Some(touched) = self.touched.take() {
            return *touched;
        }
        // The template never holds a stream, so it can always be cloned.
        let fresh = || Request::new(self.template.method().clone(), self.template.url().clone());
        let copy = || self.template.try_clone().unwrap_or_else(fresh);
        let body = match &mut self.payload {
            Payload::Shared => return copy(),
            Payload::Once(body) => body.take(),
            Payload::Made(make) => Some(make()),
        };
        let mut request = copy();
        *request.body_mut() = body;
        request
    }

    /// What `headers_with` and `on_attempt` must leave as it is.
    fn check(&self, request: &Request, client: &Inner) -> Result<(), Error> {
        let name = client.scheme.name();
        if !same_origin(request.url(), self.url()) {
            return Err(Error::builder("on_attempt must not change scheme, host or port").with_url(self.url()));
        }
        let kept = request.headers().get(name) == self.template.headers().get(name)
            && request.headers().get_all(name).iter().count() == self.template.headers().get_all(name).iter().count();
        if !kept {
            let what = "headers_with and on_attempt must not change the idempotency header";
            return Err(Error::builder(what).with_url(self.url()));
        }
        Ok(())
    }

    /// Where the answer points.
    pub(crate) fn onward(
        &self,
        response: &Response,
        hints: &Hints,
        client: &Inner,
        call: &Call,
    ) -> (Onward, Option<Hop>) {
        let status = response.status();
        let polls = status.as_u16() == 202 && call.policy().polls();
        if !client.follows || !status.is_redirection() && !polls {
            return (Onward::No, None);
        }
        let from = redirect::From {
            method: self.method(),
            url: self.url(),
            replayable: self.is_replayable(),
            left: client.redirects.saturating_sub(self.hops),
            visited: &self.visited,
            leaves: !client.bound,
            unkeyed: !call.may_have_run() || self.repeat(client).goes_unkeyed(call.policy().non_idempotent()),
            sets_cookie: cfg!(feature = "cookies") && response.headers().contains_key(SET_COOKIE),
        };
        if polls {
            redirect::poll(response.headers(), hints, self.polling, from)
        } else {
            redirect::redirect(status, response.headers(), from)
        }
    }

    /// Becomes the request of the hop. Another origin loses what is not its business.
    pub(crate) fn follow(&mut self, hop: Hop, client: &Inner) {
        if hop.is_poll {
            self.polling = true;
        } else {
            self.hops += 1;
            self.visited.push((self.method().clone(), self.url().clone()));
        }
        if !hop.keeps_body {
            self.payload = Payload::Shared;
            *self.template.body_mut() = None;
            let about = [CONTENT_LENGTH, CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION];
            for name in about.iter().chain([&TRANSFER_ENCODING]) {
                self.template.headers_mut().remove(name);
            }
        }
        let leaves = !same_origin(&hop.url, self.url());
        *self.template.method_mut() = hop.method;
        *self.template.url_mut() = hop.url;
        if leaves {
            self.leave(client);
        }
    }

    fn leave(&mut self, client: &Inner) {
        (self.home, self.keyed) = (false, None);
        let headers = self.template.headers_mut();
        headers.remove(client.scheme.name());
        headers.remove(HOST);
        let kept = [ACCEPT, ACCEPT_LANGUAGE, USER_AGENT];
        let stays = |name: &_, value: &_| {
            let default = client.defaults.get_all(name).iter().any(|default| default == value);
            !client.credentials.has(name, value) && (!default || kept.contains(name))
        };
        let staying = headers.iter().filter(|(name, value)| stays(name, value));
        let staying: HeaderMap = staying.map(|(name, value)| (name.clone(), value.clone())).collect();
        *headers = staying;
        self.key = key_by::key(&client.key_by, &self.template, &client.credentials);
    }

    fn is_replayable(&self) -> bool {
        !matches!(self.payload, Payload::Once(None))
    }
}

/// RFC 9110 §9.2.2; QUERY by RFC 10008. Methods are case-sensitive.
pub(crate) fn is_idempotent(method: &Method) -> bool {
    method.is_idempotent() || method.as_str() == "QUERY"
}

/// Whether a request is safe to repeat as it is: by its method, or because a precondition fails once it was applied
/// (RFC 9110 §13.1.1, §13.1.4).
pub(crate) fn is_repeatable(method: &Method, headers: &HeaderMap) -> bool {
    is_idempotent(method) || headers.contains_key(IF_MATCH) || headers.contains_key(IF_UNMODIFIED_SINCE)
}

/// Each default that the request does not set itself.
pub(crate) fn add_defaults(headers: &mut HeaderMap, defaults: &HeaderMap) {
    for name in defaults.keys() {
        if !headers.contains_key(name) {
            for value in defaults.get_all(name) {
                headers.append(name.clone(), value.clone());
            }
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("key", &self.key)
            .field("units", &self.units)
            .field("deadline", &self.deadline)
            .field("policy", &self.policy)
            .field("buffered", &self.buffered)
            .field("idempotent", &self.idempotent)
            .finish_non_exhaustive()
    }
}
