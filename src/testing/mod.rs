//! The practice server: a real HTTP server on the loopback address, with every way of limiting that servers have, every
//! way of telling it, and every fault a network makes. For tests of any client.
//!
//! ```
//! use abide::{Quota, testing::{Fault, Scripted, Server}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limited = Server::builder().limit(Quota::per_second(100)).start().await?;
//! abide::reqwest::get(format!("{}/any/path", limited.url())).await?;
//! assert_eq!(limited.stats().most_in_window, 1);
//!
//! let scripted = Server::builder().script(vec![Scripted::fault(Fault::Reset), Scripted::status(200)]).start().await?;
//! let http = abide::reqwest::Client::builder().retry(abide::reqwest::retry::never()).build()?;
//! assert!(http.get(scripted.url()).send().await.is_err());
//! assert_eq!(http.get(scripted.url()).send().await?.status(), 200);
//! # Ok(())
//! # }
//! ```

mod algorithms;
mod builder;
mod charge;
mod dialects;
mod faults;
mod gate;
mod names;
mod script;
mod server;
mod shared;
mod stats;
mod visit;

pub use algorithms::Algorithm;
pub use builder::ServerBuilder;
pub use charge::Charges;
pub use dialects::{Dialect, RetryAfter};
pub use faults::{Fault, Faults};
pub use gate::KeyBy;
pub use names::UnknownName;
pub use script::Scripted;
pub use server::Server;
pub use shared::Recorded;
pub use stats::Stats;
