//! Processes that share a limit: this test binary, run again as one that does what its plan says.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a process tells its parent what it did, and fails by panic"
)]

use std::{
    io::{self, BufRead},
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, UNIX_EPOCH},
};

use abide::{
    Backoff, Client, Key, Limiter, Policy, Quota, ResponseExt,
    fleet::{Fleet, StoreLoss},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinSet,
    time::Instant,
};

use super::clock::{self, ms};

/// What a process does; a line of JSON in its environment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Plan {
    pub(crate) store: String,
    /// Calls go there; without it permits are only taken.
    pub(crate) server: Option<String>,
    /// So many in any window of so many milliseconds; without it the limit is learned.
    pub(crate) window: Option<(u32, u64)>,
    /// live, closed, open, or the number of processes that share.
    pub(crate) on_loss: String,
    pub(crate) timeout_ms: u64,
    pub(crate) load_ms: u64,
    /// Side by side, each as fast as it may; with `rps`: not used.
    pub(crate) workers: usize,
    /// Each time so many calls together.
    pub(crate) batch: usize,
    /// In open loop.
    pub(crate) rps: Option<u32>,
}

/// What a process did.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Report {
    /// When its permits were committed: microseconds since 1970.
    pub(crate) starts: Vec<u64>,
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    /// Attempts that the server refused.
    pub(crate) refused: u64,
    pub(crate) slowest_us: u64,
}

const PLAN: &str = "ABIDE_CREW_PLAN";
const REPORT: &str = "report: ";
const READY: &str = "ready";

impl Plan {
    /// Permits of a window, as fast as eight workers may, for a while.
    pub(crate) fn new(store: &str, window: (u32, u64), load_ms: u64) -> Self {
        Self {
            store: store.to_owned(),
            server: None,
            window: Some(window),
            on_loss: "live".to_owned(),
            timeout_ms: 250,
            load_ms,
            workers: 8,
            batch: 1,
            rps: None,
        }
    }
}

/// Processes under way.
pub(crate) struct Crew {
    members: Vec<Member>,
}

struct Member {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Crew {
    /// Starts so many, and has them connect. `test` is that of this binary which calls [`work`].
    pub(crate) async fn start(test: &str, count: usize, plan: &Plan) -> Self {
        let mut members = Vec::new();
        for _ in 0..count {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
            command.env(PLAN, serde_json::to_string(plan).unwrap()).kill_on_drop(true);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            members.push(Member { child, lines });
        }
        for member in &mut members {
            member.hear(READY).await.unwrap();
        }
        Self { members }
    }

    /// All begin.
    pub(crate) async fn go(&mut self) {
        for member in &mut self.members {
            member.child.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
        }
    }

    /// SIGKILL to the last of them.
    pub(crate) async fn kill_last(&mut self) {
        let mut member = self.members.pop().unwrap();
        member.child.kill().await.unwrap();
    }

    /// A signal to the last of them: `STOP`, say.
    pub(crate) async fn signal_last(&self, name: &str) {
        super::job::signal(&self.members.last().unwrap().child, name).await;
    }

    /// What they did, when all are through.
    pub(crate) async fn reports(self) -> Vec<Report> {
        let mut reports = Vec::new();
        for mut member in self.members {
            let report = member.hear(REPORT).await.unwrap();
            reports.push(serde_json::from_str(&report).unwrap());
            assert!(member.child.wait().await.unwrap().success());
        }
        reports
    }
}

impl Member {
    /// The rest of the first line that has the word; what else it says is for people.
    async fn hear(&mut self, word: &str) -> Option<String> {
        while let Some(line) = self.lines.next_line().await.unwrap() {
            if let Some((_, rest)) = line.split_once(word) {
                return Some(rest.to_owned());
            }
            println!("    {line}");
        }
        None
    }
}

/// All starts of a crew, in order.
pub(crate) fn starts(reports: &[Report]) -> Vec<u64> {
    let mut starts: Vec<u64> = reports.iter().flat_map(|report| report.starts.iter().copied()).collect();
    starts.sort_unstable();
    starts
}

/// The most in any closed window.
pub(crate) fn most_in(starts: &[u64], window: Duration) -> usize {
    let window = window.as_micros();
    let mut first = 0;
    let mut most = 0;
    for (last, at) in starts.iter().enumerate() {
        while u128::from(at - starts[first]) > window {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most
}

/// Of a process of the crew: does what its plan says. Nothing in any other.
pub(crate) fn work() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let at_work = AtWork::start(&plan).await;
        println!("{READY}");
        tokio::task::spawn_blocking(|| io::stdin().lock().read_line(&mut String::new())).await.unwrap().unwrap();
        at_work.run(plan).await
    });
    println!("{REPORT}{}", serde_json::to_string(&report).unwrap());
}

#[derive(Clone)]
struct AtWork {
    client: Client,
    limiter: Limiter,
    report: Arc<Mutex<Report>>,
}

impl AtWork {
    async fn start(plan: &Plan) -> Self {
        let on_loss = match plan.on_loss.as_str() {
            "live" => StoreLoss::LiveShare,
            "closed" => StoreLoss::Closed,
            "open" => StoreLoss::Open,
            number => StoreLoss::LocalShare(number.parse().unwrap()),
        };
        let fleet = Fleet::redis(&plan.store).timeout(ms(plan.timeout_ms)).on_store_loss(on_loss);
        let fleet = fleet.connect().await.unwrap();
        let quota = plan.window.map(|(n, per_ms)| Quota::window(n, ms(per_ms)));
        let limiter = quota.into_iter().fold(Limiter::builder().fleet(fleet), abide::LimiterBuilder::quota);
        let limiter = limiter.build().unwrap();
        let policy = Policy::default().no_budget().max_attempts(6).backoff(Backoff::full_jitter(ms(20), ms(200)));
        let client = Client::builder().policy(policy).limiter(limiter.clone()).build().unwrap();
        Self { client, limiter, report: Arc::default() }
    }

    async fn run(self, plan: Plan) -> Report {
        let (began, mut calls) = (clock::now(), JoinSet::new());
        let until = began + ms(plan.load_ms);
        match plan.rps {
            Some(rps) => {
                for number in 0..u64::from(rps) * plan.load_ms / 1_000 {
                    let at = began + Duration::from_nanos(number * 1_000_000_000 / u64::from(rps));
                    clock::sleep_until(at).await;
                    calls.spawn(self.clone().one(plan.server.clone(), until));
                    while calls.try_join_next().is_some() {}
                }
            }
            None => {
                for _ in 0..plan.workers {
                    calls.spawn(self.clone().batches(plan.clone(), until));
                }
            }
        }
        calls.join_all().await;
        self.report.lock().unwrap().clone()
    }

    async fn batches(self, plan: Plan, until: Instant) {
        while clock::now() < until {
            let one = |_| self.clone().one(plan.server.clone(), until);
            (0..plan.batch).map(one).collect::<JoinSet<_>>().join_all().await;
        }
    }

    async fn one(self, server: Option<String>, until: Instant) {
        let asked = clock::now();
        match server {
            Some(url) => self.call(&url, until).await,
            None => self.permit(asked, until).await,
        }
    }

    async fn permit(&self, asked: Instant, until: Instant) {
        let Ok(mut permit) = self.limiter.acquire(&Key::from("key"), 1, Some(until)).await else {
            // A refusal at once is not asked for again at once.
            return clock::sleep(ms(5)).await;
        };
        permit.commit();
        let start = clock::wall().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let mut report = self.report.lock().unwrap();
        report.starts.push(u64::try_from(start).unwrap());
        report.calls += 1;
        report.slowest_us = report.slowest_us.max(micros(asked));
    }

    async fn call(&self, url: &str, until: Instant) {
        let asked = clock::now();
        let left = until.saturating_duration_since(asked).max(ms(1));
        let answer = self.client.get(url).deadline(left).send().await;
        let mut report = self.report.lock().unwrap();
        report.calls += 1;
        report.slowest_us = report.slowest_us.max(micros(asked));
        match answer {
            Ok(response) => {
                let history = response.history();
                let refused = history.attempts().iter().filter(|attempt| attempt.status().is_some_and(|s| s == 429));
                report.refused += refused.count() as u64;
                report.failed += u64::from(!response.status().is_success());
            }
            Err(_) => report.failed += 1,
        }
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(clock::now().saturating_duration_since(since).as_micros()).unwrap_or(u64::MAX)
}
