//! `Fleet`: one limit for all processes that share a store.

use std::{fmt, sync::Arc, time::Duration};

use uuid::Uuid;

use super::{
    hub::Hub,
    link::Address,
    redis::{Names, Redis},
    store::{Lost, Store, StoreLoss},
    task::{Manners, Place, Task},
};
use crate::{Backoff, Error, clock};

/// Processes that keep their limits together. Clones are one; give it to
/// [`ClientBuilder::fleet`](crate::ClientBuilder::fleet) or [`LimiterBuilder::fleet`](crate::LimiterBuilder::fleet).
///
/// Limiters of all processes that use the same store and [name](FleetBuilder::name) share the quotas, configured and
/// learned, and the pauses of each key of the same text. A task on the runtime of
/// [`connect`](FleetBuilder::connect) does the talking; it ends with the last clone and the last limiter.
///
/// # Examples
///
/// ```no_run
/// use abide::{Client, Quota, fleet::Fleet};
///
/// # async fn run() -> Result<(), abide::Error> {
/// let fleet = Fleet::redis("redis://127.0.0.1:6379").name("crawler").connect().await?;
/// let client = Client::builder().quota(Quota::per_second(100)).fleet(fleet).build()?;
/// # let _ = client;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Fleet {
    hub: Arc<Hub>,
    store: Arc<str>,
}

impl Fleet {
    /// A store in Redis 6.2 or later, or Valkey:
    ///
    /// | URL | what |
    /// | --- | --- |
    /// | `redis[s]://[user:password@]host[:port][/db]` | one server |
    /// | `redis[s]+cluster://h1:p,h2:p` | a cluster |
    /// | `redis[s]+sentinel://h1:p,h2:p/MASTER[/db]` | the master that sentinels name |
    ///
    /// `rediss` is TLS. A URL that cannot be read is an error of [`connect`](FleetBuilder::connect).
    pub fn redis(url: impl AsRef<str>) -> FleetBuilder {
        FleetBuilder {
            address: Address::parse(url.as_ref()),
            name: "abide".to_owned(),
            on_loss: StoreLoss::default(),
            timeout: Duration::from_millis(50),
            reconnect: Backoff::full_jitter(Duration::from_millis(50), Duration::from_secs(1)),
        }
    }

    /// Whether the store is away at present.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hub.view().is_lost()
    }

    /// Why the store is away at present, in words; `None` while it answers. No credential, and no text of the store's.
    #[must_use]
    pub fn why_lost(&self) -> Option<String> {
        self.hub.view().why_lost()
    }

    /// Processes that used the key of the latest exchange in the last 5 s, this one included; 0 before the first one.
    #[must_use]
    pub fn members(&self) -> u32 {
        self.hub.view().members()
    }

    fn start(
        way: (Box<dyn Place>, Box<dyn Store>),
        (on_loss, round_trip): (StoreLoss, u64),
        manners: Manners,
        (store, seed): (Arc<str>, u64),
    ) -> Self {
        let now = clock::now();
        let (hub, view, notices) = Hub::new(on_loss, round_trip, now);
        tokio::spawn(Task::new(way, manners, (view, notices), (seed, now)).run());
        Self { hub: Arc::new(hub), store }
    }

    /// Over a store in memory.
    #[cfg(test)]
    pub(super) fn over(
        member: Box<super::memory::Member>,
        on_loss: StoreLoss,
        (timeout, reconnect): (Duration, Backoff),
        seed: u64,
    ) -> Self {
        let round_trip = u64::try_from(member.0.books().latency.as_micros()).unwrap_or(u64::MAX);
        Self::start(
            (member.clone(), member),
            (on_loss, round_trip),
            Manners { timeout, reconnect },
            ("memory".into(), seed),
        )
    }

    pub(crate) fn hub(&self) -> Arc<Hub> {
        Arc::clone(&self.hub)
    }
}

/// The store, without credentials.
impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Settings of a [`Fleet`].
#[derive(Debug)]
#[must_use = "connect() makes the fleet"]
pub struct FleetBuilder {
    address: Result<Address, Error>,
    name: String,
    on_loss: StoreLoss,
    timeout: Duration,
    reconnect: Backoff,
}

/// A store that is away while a fleet is made: after so long that is an error.
const PATIENCE: Duration = Duration::from_secs(5);

/// Of that, for its connection, and for a look at what is wrong.
const REACH: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(4_900);

impl FleetBuilder {
    /// What the names of all keys in the store begin with. Default `abide`; empty or with braces it is an error of
    /// `connect()`. Fleets of different names share nothing.
    pub fn name(mut self, prefix: impl Into<String>) -> Self {
        self.name = prefix.into();
        self
    }

    /// What to do while the store is away. Default [`StoreLoss::LiveShare`].
    pub fn on_store_loss(mut self, on_loss: StoreLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// What the store may take for an answer; after that it counts as lost. No call waits longer for it. Default 50 ms;
    /// zero is an error of `connect()`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The waits between attempts to reach a store that was lost. Default full jitter, base 50 ms, cap 1 s.
    pub fn reconnect(mut self, backoff: Backoff) -> Self {
        self.reconnect = backoff;
        self
    }

    /// Reaches the store, and starts the fleet's task on the current runtime.
    ///
    /// # Errors
    /// `is_builder`: a URL that makes no sense, a timeout of zero, a name that is empty or has braces, shares of zero
    /// processes. `is_connect`, within 5 s: the store cannot be reached, or refuses what a fleet asks (a replica, a full
    /// memory, rights that are lacking, a URL of another kind of store); the source says why.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Cancel safety
    /// Dropped before it is done it leaves nothing behind.
    pub async fn connect(self) -> Result<Fleet, Error> {
        let address = self.address?;
        if self.timeout.is_zero() {
            return Err(Error::builder("the fleet's timeout must be longer than zero"));
        }
        if self.name.is_empty() || self.name.contains(['{', '}']) {
            return Err(Error::builder("the fleet's name must not be empty, and have no braces"));
        }
        if self.on_loss == StoreLoss::LocalShare(0) {
            return Err(Error::builder("LocalShare needs at least one process"));
        }
        let member = Uuid::new_v4();
        let names = Arc::new(Names::new(self.name, member.simple().to_string()));
        let store: Arc<str> = address.to_string().into();
        let patient = Redis { address, names, timeout: REACH };
        let first = clock::before(clock::now().checked_add(PATIENCE), first(&patient)).await;
        let first = first.unwrap_or_else(|| Err(Lost("no answer within 5 s".into())));
        let (connected, round_trip) = first.map_err(|lost| Error::store(&store, &lost.0))?;
        let place = Box::new(Redis { timeout: self.timeout.max(CONNECT), ..patient });
        let manners = Manners { timeout: self.timeout, reconnect: self.reconnect };
        let (seed, _) = member.as_u64_pair();
        Ok(Fleet::start((place, connected), (self.on_loss, round_trip), manners, (store, seed)))
    }
}

/// A store that has been tried out, and how far away it is, in microseconds: by the shortest of a few round trips, for
/// others were held up somewhere.
async fn first(place: &Redis) -> Result<(Box<dyn Store>, u64), Lost> {
    let store = place.first(clock::now().checked_add(LOOK)).await?;
    let mut shortest = PATIENCE;
    for _ in 0..PINGS {
        let sent = clock::now();
        store.ping().await?;
        shortest = shortest.min(clock::now().saturating_duration_since(sent));
    }
    Ok((store, u64::try_from(shortest.as_micros()).unwrap_or(u64::MAX)))
}

const PINGS: u32 = 5;

/// Nobody waits for a connection that is made again: it may take longer than an answer.
const CONNECT: Duration = Duration::from_secs(1);
