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

/// Riot's family `X-Method-Rate-Limit` names no bucket: each method has its own.
/// <https://developer.riotgames.com/docs/portal#web-apis_rate-limiting>
const METHOD: &str = "method";

/// The name of a group: a hash of its quotas' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupId([u64; 2]);

impl GroupId {
    /// Of the route quotas that one answer of `route` told, in any order.
    pub(crate) fn of<'a>(route: Route, hints: impl Iterator<Item = &'a QuotaHint>) -> Option<Self> {
        let mut names: Vec<(&str, &str)> = hints
            .map(|hint| (hint.name.as_deref().unwrap_or_default(), hint.partition.as_deref().unwrap_or_default()))
            .collect();
        names.sort_unstable();
        names.dedup();
        let own = names.iter().any(|(name, _)| *name == METHOD).then(|| route.bits().to_be_bytes());
        let parts = names.iter().flat_map(|(name, partition)| [name.as_bytes(), partition.as_bytes()]);
        let parts = parts.chain(own.as_ref().map(<[u8; 8]>::as_slice));
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

    /// The latest answer of `route` told these quotas; none if all places are taken by groups that are in use.
    /// `before`: attempts sent under them before they were known, if they are new.
    pub(crate) fn bind(&mut self, route: Route, id: GroupId, (before, now): (u64, Tick)) -> Option<&mut Group> {
        if !self.groups.contains_key(&id) && self.groups.len() >= MOST {
            self.drop_idle(now);
            if self.groups.len() >= MOST {
                self.unbind(route);
                return None;
            }
        }
        if !self.bound.contains_key(&route) && self.bound.len() >= MOST {
            let idlest = self.bound.iter().min_by_key(|(_, (_, used))| *used).map(|(route, _)| *route);
            idlest.map(|idlest| self.bound.remove(&idlest));
        }
        self.bound.insert(route, (id, now));
        let group = self.groups.entry(id).or_insert_with(|| Group {
            scope: Scope::new(Vec::new(), u32::MAX, Ramp::over()).sent_before(before),
            book: Book::default(),
            used: now,
        });
        group.used = now;
        Some(group)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{
        costs::Costs,
        scope::{Turn, Want},
    };
    use http::Method;

    /// Whatever names a server makes up, and even while all groups are in use.
    #[test]
    fn routes_and_groups_are_bounded() {
        let mut routes = Routes::default();
        for i in 0..1_000u64 {
            let route = Route::of(&Method::GET, &format!("/r{i}x"));
            let hint = QuotaHint { name: Some(format!("b{i}")), ..QuotaHint::default() };
            let id = GroupId::of(route, [&hint].into_iter()).unwrap();
            let used = i % 2 == 0 || i < 300;
            if let Some(group) = routes.bind(route, id, (1, Tick::from_nanos(i))).filter(|_| used) {
                let want =
                    Want { costs: Costs::default(), deadline: Tick::NEVER, max_pause: u64::MAX, most_waiting: 1 };
                let turn = group.scope.try_now(&want, Tick::from_nanos(i), &mut Vec::new());
                assert!(matches!(turn, Turn::Granted { .. }));
            }
            assert!(routes.bound.len() <= MOST && routes.groups.len() <= MOST);
        }
    }
}
