//! What one key has to say to the store and when, and what to do while the store is away. Pure, handed now.

use super::{lease::Keeping, store::StoreLoss};
use crate::limit::{costs::Costs, tick::Tick};

/// Where no quota is known the store is asked this often while calls are made, so that a pause or a quota that another
/// process heard of is known here soon. In nanoseconds.
const NEWS: u64 = 100_000_000;

/// Processes come back from an outage within so long, each at an instant of its own. In nanoseconds.
const SETTLES: u64 = 1_100_000_000;

/// What a key knows of its fleet.
#[derive(Debug)]
pub(crate) struct Share {
    round_trip: u64,
    state: State,
    /// How quotas are kept in that state.
    kept: Keeping,
    /// Which life of the key's state in the store the leases are of.
    generation: Option<Box<str>>,
    /// Nothing is granted after this instant without news from the store.
    fresh_until: Tick,
    /// When the last request that was answered left.
    heard: Option<Tick>,
    members: u32,
    /// After an outage: so many share the limit, until all must be back.
    settling: (u32, Tick),
    pub(crate) in_flight: bool,
    retry_at: Tick,
    /// What the first in line wanted with the last request, and with the one that `retry_at` answers.
    asked: Costs,
    refused: Costs,
    /// A pause that the server asked this process for, not told yet.
    pause: Tick,
    /// One that is on its way to the store.
    telling: Tick,
    /// Something was granted since the last request.
    pub(crate) used: bool,
    /// One that would not wait was refused.
    pub(crate) wish: Option<Costs>,
    /// The fleet's task looks at this key then, at the latest.
    pub(crate) looked_at: Tick,
}

/// How the store is, as far as this key knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Shared,
    /// Away; it is tried again at this instant.
    Lost(StoreLoss, Tick),
}

/// What a key wants of the fleet's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    At(Tick),
    Nothing,
}

impl Share {
    /// `round_trip`: to the store and back, in microseconds.
    pub(crate) fn new(round_trip: u64) -> Self {
        Self {
            round_trip,
            state: State::Shared,
            kept: Keeping::Shared,
            generation: None,
            fresh_until: Tick::default(),
            heard: None,
            members: 0,
            settling: (0, Tick::default()),
            in_flight: false,
            retry_at: Tick::default(),
            asked: Costs::default(),
            refused: Costs::default(),
            pause: Tick::default(),
            telling: Tick::default(),
            used: false,
            wish: None,
            looked_at: Tick::NEVER,
        }
    }

    pub(crate) fn round_trip(&self) -> u64 {
        self.round_trip
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Gives whether it was another.
    pub(crate) fn set_state(&mut self, state: State, now: Tick) -> bool {
        let lost = |state| matches!(state, State::Lost(..));
        let changed = lost(self.state) != lost(state);
        if let (true, State::Lost(loss, _)) = (changed, self.state) {
            let told = if let StoreLoss::LocalShare(members) = loss { members } else { self.members };
            self.settling = (told, now.plus(SETTLES));
        }
        self.state = state;
        if changed {
            (self.fresh_until, self.retry_at, self.in_flight) = (Tick::default(), Tick::default(), false);
            // What was under way has not been heard, as far as anybody knows.
            self.pause = self.pause.max(std::mem::take(&mut self.telling));
        }
        changed
    }

    /// How quotas are kept from now on, in the present state, if `elsewhere` processes are known of by other keys.
    pub(crate) fn keep(&mut self, elsewhere: u32) -> Keeping {
        self.kept = match self.state {
            State::Shared => Keeping::Shared,
            State::Lost(StoreLoss::LocalShare(members), _) => Keeping::Alone(members),
            State::Lost(StoreLoss::LiveShare, _) if self.members > 0 => Keeping::Alone(self.members),
            State::Lost(StoreLoss::LiveShare, _) => Keeping::Alone(elsewhere.max(1)),
            State::Lost(StoreLoss::Closed | StoreLoss::Open, _) => Keeping::Open,
        };
        self.kept
    }

    /// How quotas are kept, also those that are told from now on.
    pub(crate) fn kept(&self) -> Keeping {
        self.kept
    }

    /// When the store is tried next, if calls are refused until then.
    pub(crate) fn closed_until(&self) -> Option<Tick> {
        match self.state {
            State::Lost(StoreLoss::Closed, until) => Some(until),
            _ => None,
        }
    }

    /// Whether what is known of the store is new enough to send by, or nothing has to be known.
    pub(crate) fn is_fresh(&self, now: Tick) -> bool {
        match self.state {
            State::Shared => now < self.fresh_until,
            State::Lost(loss, _) => loss != StoreLoss::Closed,
        }
    }

    pub(crate) fn members(&self) -> u32 {
        self.members
    }

    pub(crate) fn heard(&self) -> Option<Tick> {
        self.heard
    }

    /// The members that share the limit, for a while after an outage.
    pub(crate) fn expected(&self, now: Tick) -> u32 {
        let (members, until) = self.settling;
        if now < until { members } else { 0 }
    }

    /// The server asked this process for a pause.
    pub(crate) fn tell_pause(&mut self, until: Tick) {
        self.pause = self.pause.max(until);
    }

    /// What remains of the pause to be told, in microseconds, rounded up.
    pub(crate) fn take_pause(&mut self, now: Tick) -> u64 {
        self.telling = std::mem::take(&mut self.pause);
        self.telling.since(now).div_ceil(1_000)
    }

    /// A request has been answered. `lease`: the shortest of the key's leases, in nanoseconds. Gives whether the store
    /// has lost its memory since the last answer.
    pub(crate) fn answered(&mut self, generation: &str, members: u32, (sent, lease): (Tick, Option<u64>)) -> bool {
        (self.in_flight, self.telling) = (false, Tick::default());
        self.heard = Some(sent);
        self.fresh_until = sent.plus(lease.unwrap_or(NEWS));
        let forgotten = self.generation.as_deref().is_some_and(|known| known != generation);
        // A store that has lost its memory, or was away, knows only those who have come back before this one.
        let all_known = !forgotten && self.expected(sent) == 0;
        self.members = if all_known { members } else { members.max(self.members) };
        if self.generation.as_deref() != Some(generation) {
            self.generation = Some(generation.into());
        }
        forgotten
    }

    /// A request leaves, for this of the first in line.
    pub(crate) fn ask(&mut self, first: Costs) {
        (self.in_flight, self.used, self.asked) = (true, false, first);
    }

    /// Less was granted than wanted: there is no use in asking before `at`, but for less.
    pub(crate) fn retry_at(&mut self, at: Tick) {
        (self.retry_at, self.refused) = (at, self.asked.clone());
    }

    /// What [`retry_at`](Self::retry_at) holds for.
    pub(crate) fn refused(&self) -> &Costs {
        &self.refused
    }

    /// Nothing but news is asked for, and they are about to be too old.
    pub(crate) fn is_stale(&self, now: Tick) -> bool {
        self.fresh_until.since(now) <= NEWS / 8
    }

    /// When to ask; `wanting`: from when on units are wanted, and whether less than was refused; `leases`: when a lease has
    /// to be looked after.
    pub(crate) fn due(&self, (wanting, less): (Option<Tick>, bool), leases: Tick, now: Tick) -> Due {
        let retry_at = if less { Tick::default() } else { self.retry_at };
        if self.in_flight {
            return Due::Nothing;
        }
        if self.pause > now {
            return Due::Now;
        }
        match wanting.unwrap_or(Tick::NEVER).min(leases).max(retry_at) {
            Tick::NEVER => Due::Nothing,
            at if at <= now => Due::Now,
            at => Due::At(at),
        }
    }
}
