//! How full a bucket was since an instant: a cost that is corrected downward comes back only so far as the bucket has
//! had room for it ever since. What it could not have taken is gone, as it is at the server. Pure, handed now.

use super::tick::Tick;

/// The least that was missing to full, over time.
///
/// It shrinks as the bucket refills and grows at a commit, so its lows are just before commits. Older ones are joined,
/// to the lower of two, so that memory is bounded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slack {
    /// In order of time.
    lows: Vec<(Tick, i128)>,
}

const MOST: usize = 8;

impl Slack {
    /// Something is about to be committed or charged at `now`, and so much is missing to full.
    pub(crate) fn note(&mut self, slack: i128, now: Tick) {
        while self.lows.last().is_some_and(|(_, low)| *low >= slack) {
            self.lows.pop();
        }
        if self.lows.len() >= MOST {
            let (_, low) = self.lows.remove(0);
            self.lows[0].1 = self.lows[0].1.min(low);
        }
        self.lows.push((now, slack));
    }

    /// The least that was missing after `sent`, up to the last commit.
    pub(crate) fn since(&self, sent: Tick) -> i128 {
        let after = self.lows.iter().filter(|(at, _)| *at > sent);
        after.map(|(_, low)| *low).min().unwrap_or(i128::MAX)
    }

    /// So much of what was committed at `sent` came back: all since then had less room.
    pub(crate) fn lower(&mut self, given: i128, sent: Tick) {
        for (_, low) in self.lows.iter_mut().filter(|(at, _)| *at > sent) {
            *low -= given;
        }
    }
}
