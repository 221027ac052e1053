//! Quotas in the making, and the rules by which two that tell of the same thing become one.

use std::time::Duration;

use super::QuotaHint;
use crate::Unit;

/// Most quotas of one response; what comes after is ignored.
const MAX_QUOTAS: usize = 128;

/// Two resets of one quota may differ by what whole seconds round away.
const ROUNDING: Duration = Duration::from_secs(2);

/// One quota, where it came from, and whether it is only advertised.
#[derive(Debug)]
pub(super) struct Draft<'h> {
    pub(super) prefix: &'h str,
    /// A policy of the IETF drafts: a limit and a window that may belong to another entry.
    pub(super) policy: bool,
    pub(super) hint: QuotaHint,
}

/// All quotas of a response.
#[derive(Debug, Default)]
pub(super) struct Drafts<'h>(Vec<Draft<'h>>);

impl<'h> Drafts<'h> {
    pub(super) fn push(&mut self, prefix: &'h str, policy: bool, hint: QuotaHint) {
        if self.0.len() < MAX_QUOTAS {
            self.0.push(Draft { prefix, policy, hint });
        }
    }

    pub(super) fn quota(&mut self, prefix: &'h str, hint: QuotaHint) {
        self.push(prefix, false, hint);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes back what a malformed field brought.
    pub(super) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// The nameless quotas of a prefix.
    pub(super) fn nameless(&mut self, prefix: &str) -> impl Iterator<Item = &mut QuotaHint> {
        let own = self.0.iter_mut().filter(move |draft| !draft.policy && draft.prefix == prefix);
        own.map(|draft| &mut draft.hint).filter(|hint| hint.name.is_none())
    }

    pub(super) fn has_policies(&self) -> bool {
        self.0.iter().any(|draft| draft.policy)
    }

    /// Gives the policies to the quotas they belong to: to the item of their name, else to the quota in force of their
    /// limit when no other policy has that limit.
    pub(super) fn join_policies(&mut self) {
        self.drop_repeated_policies();
        self.absorb(false, |quota, policy| quota.prefix == policy.prefix && same_item(&quota.hint, &policy.hint));
        self.absorb(true, |quota, policy| quota.prefix == policy.prefix && same_limit(&quota.hint, &policy.hint));
        self.absorb(true, |quota, policy| same_limit(&quota.hint, &policy.hint));
    }

    /// Makes one of what is told twice: first across the prefixes, then by equal numbers of a name.
    pub(super) fn merge(&mut self) {
        if self.0.len() < 2 {
            return;
        }
        self.0.sort_by_key(|draft| rank(draft));
        self.merge_pairs(|kept, other| {
            kept.prefix != other.prefix && kept.hint.name == other.hint.name && !contradict(&kept.hint, &other.hint)
        });
        self.merge_equal_numbers();
    }

    /// The quotas that tell at least one of limit, remaining and reset.
    pub(super) fn finish(self) -> Vec<QuotaHint> {
        let told = |hint: &QuotaHint| hint.limit.is_some() || hint.remaining.is_some() || hint.reset_after.is_some();
        // Not collected in place: giving back the larger entries' room costs more than a fresh list.
        let mut quotas = Vec::with_capacity(self.0.len());
        quotas.extend(self.0.into_iter().map(|draft| draft.hint).filter(told));
        quotas
    }

    fn drop_repeated_policies(&mut self) {
        let mut index = 0;
        while let Some(draft) = self.0.get(index) {
            let earlier = self.0.iter().take(index);
            let repeated = draft.policy && earlier.filter(|other| other.policy).any(|other| other.hint == draft.hint);
            if repeated {
                self.0.remove(index);
            } else {
                index = index.saturating_add(1);
            }
        }
    }

    /// Gives each quota the policy that belongs to it; `single`: only when no other one does. From the back, because
    /// what is taken moves up what follows.
    fn absorb(&mut self, single: bool, belongs: impl Fn(&Draft<'_>, &Draft<'_>) -> bool) {
        for index in (0..self.0.len()).rev() {
            let Some(quota) = self.0.get(index).filter(|quota| !quota.policy) else { continue };
            let policies = self.0.iter().enumerate().filter(|(_, draft)| draft.policy);
            let mut found = policies.filter(|(_, policy)| belongs(quota, policy)).map(|(policy, _)| policy);
            match (found.next(), found.next()) {
                (Some(policy), None) => self.take(index, policy),
                (Some(policy), Some(_)) if !single => self.take(index, policy),
                _ => {}
            }
        }
    }

    /// Moves what `from` tells into `into`, and removes it. Indexes before both stay.
    fn take(&mut self, into: usize, from: usize) {
        let Some(source) = self.0.get_mut(from) else { return };
        let hint = std::mem::take(&mut source.hint);
        if let Some(target) = self.0.get_mut(into) {
            fill(&mut target.hint, hint);
        }
        self.0.remove(from);
    }

    fn merge_pairs(&mut self, same: impl Fn(&Draft<'_>, &Draft<'_>) -> bool) {
        let mut kept = 0;
        while let Some(draft) = self.0.get(kept) {
            let rest = self.0.iter().enumerate().skip(kept.saturating_add(1));
            let found =
                rest.filter(|(_, other)| !draft.policy && !other.policy && same(draft, other)).map(|(at, _)| at).next();
            match found {
                Some(other) => self.take(kept, other),
                None => kept = kept.saturating_add(1),
            }
        }
    }

    /// A nameless quota whose limit and remaining are those of exactly one named one repeats it (Kong).
    fn merge_equal_numbers(&mut self) {
        let mut index = 0;
        while let Some(draft) = self.0.get(index) {
            let twins = self.0.iter().enumerate().filter(|(_, other)| repeats(draft, other)).map(|(twin, _)| twin);
            let mut twins = twins.fuse();
            match (twins.next(), twins.next()) {
                (Some(twin), None) => self.take(twin, index),
                _ => index = index.saturating_add(1),
            }
        }
    }
}

/// The unprefixed family first, then X-, then vendors.
fn rank(draft: &Draft<'_>) -> u8 {
    match draft.prefix {
        prefix if prefix.starts_with("rate") => 0,
        prefix if prefix.starts_with("x-rate") => 1,
        _ => 2,
    }
}

fn same_item(quota: &QuotaHint, policy: &QuotaHint) -> bool {
    quota.name.is_some() && quota.name == policy.name && quota.limit.is_none() && same_partition(quota, policy)
}

fn same_limit(quota: &QuotaHint, policy: &QuotaHint) -> bool {
    let names = quota.name.is_none() || policy.name.is_none() || quota.name == policy.name;
    let windows = quota.window.is_none() || policy.window.is_none() || quota.window == policy.window;
    quota.limit.is_some() && quota.limit == policy.limit && names && windows && same_partition(quota, policy)
}

fn same_partition(quota: &QuotaHint, policy: &QuotaHint) -> bool {
    quota.partition.is_none() || policy.partition.is_none() || quota.partition == policy.partition
}

fn contradict(one: &QuotaHint, other: &QuotaHint) -> bool {
    fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
        matches!((one, other), (Some(one), Some(other)) if one != other)
    }
    let resets = match (one.reset_after, other.reset_after) {
        (Some(one), Some(other)) => one.abs_diff(other) > ROUNDING,
        _ => false,
    };
    differ(one.limit, other.limit)
        || differ(one.remaining, other.remaining)
        || differ(one.window, other.window)
        || differ(one.partition.as_deref(), other.partition.as_deref())
        || one.unit != other.unit
        || resets
}

fn repeats(nameless: &Draft<'_>, named: &Draft<'_>) -> bool {
    let numbers = |hint: &QuotaHint| hint.limit.zip(hint.remaining);
    !nameless.policy
        && nameless.hint.name.is_none()
        && named.hint.name.is_some()
        && numbers(&nameless.hint).is_some()
        && numbers(&nameless.hint) == numbers(&named.hint)
}

/// Takes from `other` what `hint` does not tell.
fn fill(hint: &mut QuotaHint, other: QuotaHint) {
    if hint.name.is_none() {
        hint.name = other.name;
        hint.scope = other.scope;
    }
    hint.limit = hint.limit.or(other.limit);
    hint.remaining = hint.remaining.or(other.remaining);
    hint.reset_after = hint.reset_after.or(other.reset_after);
    hint.window = hint.window.or(other.window);
    hint.partition = hint.partition.take().or(other.partition);
    if hint.unit == Unit::Requests {
        hint.unit = other.unit;
    }
}
