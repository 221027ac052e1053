//! Which route is bound by which route quotas. Pure, handed now; bounded.
//!
//! A *group* is the set of route quotas that one answer told, by names and partitions: routes whose latest answers told
//! the same share its line, its meters and its pause.

use std::collections::HashMap;

use super::{
    key::{Key, Route},
    learn::Book,
    pause::Ramp,
    scope::Scope,
    tick::Tick,
};
use crate::headers::QuotaHint;

/// Routes of one key, and groups of them; the idlest leaves.
pub(crate) const MOST: usize = 256;

/// The name of a group: a hash of its quotas' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupId(u128);

impl GroupId {
    /// Of the route quotas that one answer told, in any order.
    pub(crate) fn of<'a>(hints: impl Iterator<Item = &'a QuotaHint>) -> Option<Self> {
        let mut names: Vec<(&str, &str)> = hints
            .map(|hint| (hint.name.as_deref().unwrap_or_default(), hint.partition.as_deref().unwrap_or_default()))
            .collect();
        names.sort_unstable();
        names.dedup();
        let parts = names.iter().flat_map(|(name, partition)| [name.as_bytes(), partition.as_bytes()]);
        (!names.is_empty()).then(|| Self(Key::of_parts(parts).bits()))
    }
}

/// Route quotas that are taken together, and what is known of them.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) scope: Scope,
    pub(crate) book: Book,
    used: Tick,
}

/// The routes of a key.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    bound: HashMap<Route, (GroupId, Tick)>,
    groups: HashMap<GroupId, Group>,
}

impl Routes {
    /// The group that binds a route, by its latest answer.
    pub(crate) fn group_of(&mut self, route: Route, now: Tick) -> Option<GroupId> {
        let (id, used) = self.bound.get_mut(&route)?;
        *used = now;
        Some(*id)
    }

    pub(crate) fn group(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(&id)
    }

    /// The latest answer of `route` told these quotas.
    pub(crate) fn bind(&mut self, route: Route, id: GroupId, now: Tick) -> &mut Group {
        if !self.bound.contains_key(&route) && self.bound.len() >= MOST {
            let idlest = self.bound.iter().min_by_key(|(_, (_, used))| *used).map(|(route, _)| *route);
            idlest.map(|idlest| self.bound.remove(&idlest));
        }
        self.bound.insert(route, (id, now));
        if !self.groups.contains_key(&id) && self.groups.len() >= MOST {
            self.drop_idle(now);
        }
        let group = self.groups.entry(id).or_insert_with(|| Group {
            scope: Scope::new(Vec::new(), u32::MAX, Ramp::over()),
            book: Book::default(),
            used: now,
        });
        group.used = now;
        group
    }

    /// The latest answer of `route` told no route quota.
    pub(crate) fn unbind(&mut self, route: Route) {
        self.bound.remove(&route);
    }

    /// Groups at rest leave; if there are none, the idlest of which nothing is under way.
    fn drop_idle(&mut self, now: Tick) {
        self.groups.retain(|_, group| group.rests_at() > now);
        if self.groups.len() >= MOST {
            let idle = self.groups.iter().filter(|(_, group)| group.scope.rests_at() != Tick::NEVER);
            let idlest = idle.min_by_key(|(_, group)| group.used).map(|(id, _)| *id);
            idlest.map(|idlest| self.groups.remove(&idlest));
        }
    }

    pub(crate) fn rests_at(&self) -> Tick {
        self.groups.values().map(Group::rests_at).max().unwrap_or_default()
    }

    pub(crate) fn groups(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.values_mut()
    }
}

impl Group {
    pub(crate) fn rests_at(&self) -> Tick {
        self.scope.rests_at().max(self.book.rests_at())
    }
}
