//! The guide: how a call goes, how to tune and test it, what is kept safe.
//!
//! | page | for |
//! | --- | --- |
//! | [`flow`] | whoever reads the code, or wants to know what never happens |
//! | [`headers`] | what is read of a response |
//! | [`verdicts`] | what comes of each status, by kind of call |
//! | [`tuning`] | API clients, bulk jobs, integrations on many machines |
//! | [`fleet`] | one limit, or one job, for many machines, and what holds while the store is away |
//! | [`testing`] | tests of your own code around abide |
//! | [`telemetry`] | spans, metrics, events |
//! | [`security`] | keys, credentials, hostile servers |
//! | [`migrating`] | those who come from reqwest-retry, governor or backon |
//! | [`peers`] | a comparison, dated |
//! | [`faq`] | questions |
//! | [`changes`] | what each version changed |

#[doc = include_str!("flow.md")]
pub mod flow {}

#[doc = include_str!("headers.md")]
pub mod headers {}

#[doc = include_str!("verdicts.md")]
pub mod verdicts {}

#[doc = include_str!("tuning.md")]
pub mod tuning {}

// The code of these pages is tested with all features.
#[cfg_attr(all(feature = "redis", feature = "bulk"), doc = include_str!("fleet.md"))]
#[cfg_attr(
    not(all(feature = "redis", feature = "bulk")),
    doc = "This page is rendered with the features `redis` and `bulk`."
)]
pub mod fleet {}

#[cfg_attr(feature = "testing", doc = include_str!("testing.md"))]
#[cfg_attr(not(feature = "testing"), doc = "This page is rendered with the feature `testing`.")]
pub mod testing {}

#[doc = include_str!("telemetry.md")]
pub mod telemetry {}

#[doc = include_str!("security.md")]
pub mod security {}

#[cfg_attr(feature = "reqwest-retry", doc = include_str!("migrating.md"))]
#[cfg_attr(not(feature = "reqwest-retry"), doc = "This page is rendered with the feature `reqwest-retry`.")]
pub mod migrating {}

#[doc = include_str!("peers.md")]
pub mod peers {}

#[doc = include_str!("faq.md")]
pub mod faq {}

#[doc = include_str!("changes.md")]
pub mod changes {}
