//! What one attempt takes, by unit.

use super::quota::Unit;

/// Units that one attempt takes; a unit that is not stated is not charged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs {
    requests: u32,
    others: Option<Box<[(Unit, u32)]>>,
}

impl Costs {
    pub(crate) const fn requests(cost: u32) -> Self {
        Self { requests: cost, others: None }
    }

    /// Costs stated for the same unit add up.
    pub(crate) fn of(units: &[(Unit, u32)]) -> Self {
        let mut costs = Self::default();
        let mut others: Vec<(Unit, u32)> = Vec::new();
        for (unit, cost) in units {
            if *unit == Unit::Requests {
                costs.requests = costs.requests.saturating_add(*cost);
            } else if let Some((_, sum)) = others.iter_mut().find(|(known, _)| known == unit) {
                *sum = sum.saturating_add(*cost);
            } else {
                others.push((unit.clone(), *cost));
            }
        }
        costs.others = (!others.is_empty()).then(|| others.into());
        costs
    }

    #[inline]
    pub(crate) fn get(&self, unit: &Unit) -> u64 {
        match unit {
            Unit::Requests => self.requests.into(),
            unit => self.other(unit),
        }
    }

    #[cold]
    fn other(&self, unit: &Unit) -> u64 {
        self.others().iter().find(|(known, _)| known == unit).map_or(0, |(_, cost)| u64::from(*cost))
    }

    /// Sets what the attempt really took of a unit.
    pub(crate) fn set(&mut self, unit: &Unit, actual: u32) {
        if *unit == Unit::Requests {
            self.requests = actual;
            return;
        }
        let mut others = self.others.take().map_or_else(Vec::new, Vec::from);
        match others.iter_mut().find(|(known, _)| known == unit) {
            Some((_, cost)) => *cost = actual,
            None => others.push((unit.clone(), actual)),
        }
        self.others = Some(others.into());
    }

    fn others(&self) -> &[(Unit, u32)] {
        self.others.as_deref().unwrap_or_default()
    }
}

/// Costs summed over many attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    requests: u64,
    others: Vec<(Unit, u64)>,
}

impl Sums {
    #[inline]
    pub(crate) fn add(&mut self, costs: &Costs) {
        self.requests = self.requests.saturating_add(costs.requests.into());
        if let Some(others) = &costs.others {
            self.add_others(others);
        }
    }

    #[cold]
    fn add_others(&mut self, others: &[(Unit, u32)]) {
        for (unit, cost) in others {
            match self.others.iter_mut().find(|(known, _)| known == unit) {
                Some((_, sum)) => *sum = sum.saturating_add((*cost).into()),
                None => self.others.push((unit.clone(), (*cost).into())),
            }
        }
    }

    #[inline]
    pub(crate) fn sub(&mut self, costs: &Costs) {
        self.requests = self.requests.saturating_sub(costs.requests.into());
        if let Some(others) = &costs.others {
            self.sub_others(others);
        }
    }

    #[cold]
    fn sub_others(&mut self, others: &[(Unit, u32)]) {
        for (unit, cost) in others {
            if let Some((_, sum)) = self.others.iter_mut().find(|(known, _)| known == unit) {
                *sum = sum.saturating_sub((*cost).into());
            }
        }
    }

    pub(crate) fn get(&self, unit: &Unit) -> u64 {
        if *unit == Unit::Requests {
            return self.requests;
        }
        self.others.iter().find(|(known, _)| known == unit).map_or(0, |(_, sum)| *sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_add_up_and_come_off_again() {
        let costs = Costs::of(&[(Unit::Requests, 1), (Unit::Tokens, 5), (Unit::Tokens, 7)]);
        assert_eq!((costs.get(&Unit::Requests), costs.get(&Unit::Tokens), costs.get(&Unit::Bytes)), (1, 12, 0));
        let mut sums = Sums::default();
        sums.add(&costs);
        sums.add(&Costs::requests(3));
        assert_eq!((sums.get(&Unit::Requests), sums.get(&Unit::Tokens)), (4, 12));
        sums.sub(&costs);
        assert_eq!((sums.get(&Unit::Requests), sums.get(&Unit::Tokens)), (3, 0));
    }
}
