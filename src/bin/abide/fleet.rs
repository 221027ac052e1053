//! Options of a fleet: one limit for many runs, kept in Redis.

use abide::fleet::{Fleet, StoreLoss};

use crate::options::from_env;

/// Options of `abide run` that share its limits with other runs.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// Shares the limits with all runs of the same store and name; a password: env:NAME in the URL reads the
    /// environment
    #[arg(long = "fleet", value_name = "redis://…")]
    pub(crate) store: Option<String>,
    /// Runs of different names share nothing
    #[arg(long, value_name = "NAME", default_value = "abide", requires = "store")]
    pub(crate) fleet_name: String,
    /// While the store is away: the limit divided by the runs seen last, or by N; or no request; or no shared limit
    #[arg(
        long,
        value_name = "live-share|local-share:N|closed|open",
        default_value = "live-share",
        value_parser = on_loss,
        requires = "store"
    )]
    pub(crate) on_store_loss: StoreLoss,
}

impl FleetArgs {
    /// The fleet that they describe, once its store answers.
    pub(crate) async fn connect(&self) -> Result<Option<Fleet>, String> {
        let Some(url) = &self.store else { return Ok(None) };
        let url = from_env(url).map_err(|why| format!("--fleet: {why}"))?;
        let fleet = Fleet::redis(url).name(&self.fleet_name).on_store_loss(self.on_store_loss);
        let why = |error: abide::Error| match std::error::Error::source(&error) {
            Some(source) => format!("--fleet: {error}: {source}"),
            None => format!("--fleet: {error}"),
        };
        fleet.connect().await.map(Some).map_err(why)
    }
}

/// What was told of the loss of the store.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Of the loss that lasts.
    told: Vec<String>,
}

/// So many causes of one loss are told.
const CAUSES: usize = 5;

impl Losses {
    /// One line for each loss, for each other cause that it turns out to have, and for the return.
    pub(crate) fn news(&mut self, why: Option<String>) -> Option<String> {
        let Some(why) = why else {
            let told = std::mem::take(&mut self.told);
            return (!told.is_empty()).then(|| "the fleet's store is back".into());
        };
        if self.told.contains(&why) || self.told.len() >= CAUSES {
            return None;
        }
        let line = match self.told.is_empty() {
            true => format!("the fleet's store is away: going on by --on-store-loss: {why}"),
            false => format!("the fleet's store is still away: {why}"),
        };
        self.told.push(why);
        Some(line)
    }
}

fn on_loss(text: &str) -> Result<StoreLoss, String> {
    match text.split_once(':') {
        None if text == "live-share" => Ok(StoreLoss::LiveShare),
        None if text == "closed" => Ok(StoreLoss::Closed),
        None if text == "open" => Ok(StoreLoss::Open),
        Some(("local-share", runs)) => match runs.parse() {
            Ok(runs) if runs > 0 => Ok(StoreLoss::LocalShare(runs)),
            _ => Err(format!("{runs:?} is no number of runs")),
        },
        _ => Err("expected live-share, local-share:N, closed or open".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_of_a_loss_is_told_once() {
        let mut losses = Losses::default();
        let mut news = |why: Option<&str>| losses.news(why.map(str::to_owned));
        assert_eq!(news(None), None);
        assert!(news(Some("cut")).unwrap().ends_with("is away: going on by --on-store-loss: cut"));
        assert_eq!(news(Some("cut")), None);
        assert_eq!(news(Some("full")).unwrap(), "the fleet's store is still away: full");
        assert_eq!(news(Some("cut")), None);
        assert_eq!(news(None).unwrap(), "the fleet's store is back");
        assert!(news(Some("cut")).unwrap().ends_with(": cut"));
        for number in 0..100 {
            assert_eq!(news(Some(&format!("{number}"))).is_some(), number < 4, "{number}");
        }
    }

    #[test]
    fn ways_to_lose_a_store() {
        for (text, way) in [
            ("live-share", Some(StoreLoss::LiveShare)),
            ("local-share:3", Some(StoreLoss::LocalShare(3))),
            ("local-share:0", None),
            ("local-share", None),
            ("closed", Some(StoreLoss::Closed)),
            ("open", Some(StoreLoss::Open)),
            ("shut", None),
        ] {
            assert_eq!(on_loss(text).ok(), way, "{text}");
        }
    }
}
