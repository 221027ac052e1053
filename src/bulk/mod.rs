//! Jobs of many requests: a stream of rows in, a stream of outcomes out, at the pace that the limits allow.
//!
//! Memory is constant in the number of rows. Each key has its own lane, so that a host that pauses does not hold the
//! others. With a journal a run that was killed is resumed: what has a result is not sent again, and what was on its
//! way is sent again with the same idempotency key, or named if it may not be repeated.
//!
//! | file | what for |
//! | --- | --- |
//! | results | one line a row, whole lines only: what is done |
//! | journal | what is claimed and not finished, written before the send |
//!
//! Both are locked while a run writes them (on Unix): another one on the same files does not start.
//!
//! A row that ends throttled has not failed: it goes back to the queue as a new round, until its lane has accepted
//! nothing for 10 minutes, or the server asks for a longer wait than
//! [`Policy::max_server_wait`](crate::Policy::max_server_wait).

mod job;
mod outcome;
mod summary;
mod settings;
mod run;
mod view;
mod round;
mod row;
mod space;
mod lanes;
mod gate;
mod rules;
mod books;
mod results;
mod table;
mod journal;
mod files;
mod input;
mod rows;
#[cfg_attr(not(any(feature = "redis", test)), expect(dead_code, reason = "rows of a stream need a store"))]
mod claim;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
mod stream;
mod plan;
mod stats;
mod report;
mod charts;

pub use gate::Stopper;
pub use input::Input;
pub use job::Job;
pub use outcome::{Failure, Outcome};
pub use plan::{Plan, Resolved};
pub use rules::End;
pub use run::Run;
pub use settings::Bulk;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use stream::{Claims, Ending, Push, Pushed, Source};
pub use summary::{Progress, Summary};

/// FNV-1a, 64 bits: the same in every version and on every machine, as what is on a disk must be.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// RFC 4648 §4.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place > chunk.len() { '=' } else { char::from(letter) });
        }
    }
    text
}
