//! One limit for real processes: this test binary runs again as each of them. `ABIDE_LONG` for more and longer ones.

use std::time::{Duration, UNIX_EPOCH};

use abide::{
    Quota,
    testing::{Algorithm, Fault, Faults, Server},
};

use crate::support::{
    clock::{self, ms},
    crew::{self, Crew, Plan, Report, most_in, starts},
    is_long,
    redis::{Redis, skip},
    stalls::Stalls,
};

const SECOND: Duration = Duration::from_secs(1);

/// Does what a parent wants.
#[test]
fn member() {
    crew::work();
}

async fn crew(count: usize, plan: &Plan) -> Crew {
    Crew::start("fleet_processes::member", count, plan).await
}

fn micros_now() -> u64 {
    u64::try_from(clock::wall().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// So many starts in a span, in milliseconds after `from`.
fn between(starts: &[u64], from: u64, (first, last): (u64, u64)) -> usize {
    starts.iter().filter(|at| (from + first * 1_000..from + last * 1_000).contains(*at)).count()
}

/// Calls of the script so far, and what one took, in microseconds.
fn scripts(redis: &Redis) -> (u64, f64) {
    let said = redis.cli(&["INFO", "commandstats"]);
    let line = said.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let field =
        |name: &str| line.split([':', ',']).find_map(|field| field.strip_prefix(name)).unwrap_or("0").to_owned();
    (field("calls=").parse().unwrap(), field("usec_per_call=").parse().unwrap())
}

/// What a run over permits came to.
struct Figures {
    starts: Vec<u64>,
    most: usize,
    /// Share of the limit, from two windows after the start to the end.
    used: f64,
    round_trips: f64,
}

async fn run(redis: &Redis, count: usize, plan: &Plan, stalls: &Stalls) -> Figures {
    let (n, window_ms) = plan.window.unwrap();
    let mut crew = crew(count, plan).await;
    let from = micros_now();
    crew.go().await;
    let reports = crew.reports().await;
    let starts = starts(&reports);
    let steady = between(&starts, from, (2 * window_ms, plan.load_ms));
    let windows = (plan.load_ms - 2 * window_ms) as f64 / window_ms as f64;
    let (calls, script_us) = scripts(redis);
    let figures = Figures {
        most: most_in(&starts, stalls.nearly(ms(window_ms))),
        used: steady as f64 / windows / f64::from(n),
        round_trips: calls as f64 / starts.len() as f64,
        starts,
    };
    let (used, most) = (figures.used * 100.0, most_in(&figures.starts, ms(window_ms)));
    print!("{count} processes, {n} in {window_ms} ms: {used:.1} % used, most {most} ({} but for stalls)", figures.most);
    println!(", {:.3} round trips a start, {script_us:.0} us a script", figures.round_trips);
    figures
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_keep_one_window_and_use_it() {
    if skip() {
        return;
    }
    let runs: &[(usize, u32, u64)] = match is_long() {
        true => &[(8, 100, 20_000), (8, 1_000, 20_000), (8, 2_400, 20_000), (40, 100, 20_000), (20, 10, 30_000)],
        false => &[(4, 100, 5_000)],
    };
    for (count, n, load_ms) in runs {
        let redis = Redis::standalone().await;
        let stalls = Stalls::watch();
        let figures = run(&redis, *count, &Plan::new(&redis.url(), (*n, 1_000), *load_ms), &stalls).await;
        assert!(figures.most <= *n as usize, "{} of {n} in a window", figures.most);
        assert!(figures.used >= stalls.least(0.85), "{:.3} of the limit", figures.used);
    }
}

/// Each at 300 a second, in open loop.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_trip_serves_ten_starts() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let (count, load_ms) = if is_long() { (8, 10_000) } else { (2, 3_000) };
    let plan = Plan { rps: Some(300), ..Plan::new(&redis.url(), (4_000, 1_000), load_ms) };
    let stalls = Stalls::watch();
    let figures = run(&redis, count, &plan, &stalls).await;
    let part = stalls.least(1.0);
    assert!(figures.round_trips <= 0.1 / part, "{:.3} round trips a start", figures.round_trips);
    assert!(figures.starts.len() as f64 >= (count * 300) as f64 * load_ms as f64 / 1_000.0 * 0.98 * part);
}

/// A server that tells N and refuses nothing near it: what arrived is counted.
async fn server(n: u32) -> Server {
    let server = Server::builder().limit(Quota::window(100 * n, SECOND)).algorithm(Algorithm::SlidingLog);
    server.advertise(Quota::window(n, SECOND)).start().await.unwrap()
}

/// What a run against a server came to.
struct Arrived {
    starts: Vec<u64>,
    most: usize,
}

/// From the first arrival on, in microseconds.
async fn arrived(server: &Server, crew: Crew, stalls: &Stalls) -> Arrived {
    let reports = crew.reports().await;
    let sum = |of: fn(&Report) -> u64| -> u64 { reports.iter().map(of).sum() };
    let (calls, failed) = (sum(|report| report.calls), sum(|report| report.failed));
    let arrivals = server.arrivals();
    let since = |at: &tokio::time::Instant| u64::try_from((*at - arrivals[0]).as_micros()).unwrap();
    let starts: Vec<u64> = arrivals.iter().map(since).collect();
    let (most, exactly) = (most_in(&starts, stalls.nearly(SECOND)), most_in(&starts, SECOND));
    println!("{calls} calls, {failed} failed; most {exactly} ({most} but for stalls); {}", server.stats());
    Arrived { starts, most }
}

/// Batches, and retries of what fails, all at a server that counts.
#[tokio::test(flavor = "multi_thread")]
async fn no_window_of_a_server_sees_more_than_is_configured() {
    if skip() {
        return;
    }
    let (count, load_ms) = if is_long() { (20, 20_000) } else { (4, 5_500) };
    let (redis, server) = (Redis::standalone().await, server(1_000).await);
    server.set_faults(Faults::rate(0.05).kinds([Fault::InternalError])).unwrap();
    let url = Some(server.url().to_owned());
    let plan = Plan { server: url, workers: 2, batch: 4, ..Plan::new(&redis.url(), (60, 1_000), load_ms) };
    let (mut crew, stalls) = (crew(count, &plan).await, Stalls::watch());
    crew.go().await;
    let Arrived { starts, most } = arrived(&server, crew, &stalls).await;
    let used = between(&starts, 0, (2_000, load_ms - 500)) as f64 / ((load_ms - 2_500) as f64 * 0.06);
    println!("{used:.3} of the limit");
    assert!(most <= 60, "{most} in a window");
    assert!(server.stats().faults > 5);
    assert!(used >= stalls.least(0.8), "{used:.3} of the limit");
}

/// Nothing is configured: the first answers tell one, and the store tells all.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_learns_one_limit() {
    if skip() {
        return;
    }
    let (count, load_ms) = if is_long() { (10, 30_000) } else { (4, 6_500) };
    let (redis, server) = (Redis::standalone().await, server(100).await);
    let url = Some(server.url().to_owned());
    let learns = Plan { server: url, window: None, workers: 2, batch: 4, ..Plan::new(&redis.url(), (1, 1), load_ms) };
    let (mut crew, stalls) = (crew(count, &learns).await, Stalls::watch());
    crew.go().await;
    let Arrived { starts, most } = arrived(&server, crew, &stalls).await;
    let used = between(&starts, 0, (3_000, load_ms - 500)) as f64 / ((load_ms - 3_500) as f64 * 0.1);
    println!("{used:.3} of the limit");
    assert!(most <= 100, "{most} in a window");
    assert!(used >= stalls.least(0.75), "{used:.3} of the limit");
}

/// What becomes of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    Killed,
    Hangs,
    /// Killed again as soon as it is back: nobody has found all others yet.
    KilledTwice,
}

/// The bound in an outage is the limit and what was leased before it; then the limit is shared again.
async fn outage(on_loss: &str, happens: Outage) {
    let (count, away_ms) = if is_long() { (10, 5_000) } else { (4, 2_000) };
    let mut redis = Redis::standalone().await;
    let load_ms = 2_500 + away_ms + 4_500;
    let plan = Plan { on_loss: on_loss.to_owned(), workers: 32, ..Plan::new(&redis.url(), (100, 1_000), load_ms) };
    let (mut crew, stalls) = (crew(count, &plan).await, Stalls::watch());
    let from = micros_now();
    crew.go().await;
    clock::sleep(ms(2_500)).await;
    match happens {
        Outage::Hangs => {
            redis.pause();
            clock::sleep(ms(away_ms)).await;
            redis.resume();
        }
        Outage::Killed => redis.restart(ms(away_ms)).await,
        Outage::KilledTwice => {
            redis.restart(ms(away_ms / 2)).await;
            clock::sleep(ms(300)).await;
            redis.restart(ms(away_ms / 2 - 300)).await;
        }
    }
    let back = (micros_now() - from) / 1_000;
    let (scripts_back, _) = scripts(&redis);
    let reports = crew.reports().await;
    let starts = starts(&reports);
    let most = most_in(&starts, stalls.nearly(SECOND));
    let alone = between(&starts, from, (4_000, 2_500 + away_ms));
    // A window, a lease and a second.
    let shared = back + 2_040;
    let after = between(&starts, from, (shared, load_ms));
    let full = |span: u64| span as f64 / 10.0;
    let (use_alone, use_after) = (alone as f64 / full(away_ms - 1_500), after as f64 / full(load_ms - shared));
    let (scripts_end, _) = scripts(&redis);
    println!("{on_loss}, {happens:?}: most {most}; {use_alone:.2} of the limit while away, {use_after:.2} after");
    let each_100_ms = |at: u64| between(&starts, from, (at * 100, at * 100 + 100));
    println!("    back at {back} ms; in each 100 ms: {:?}", (0..load_ms / 100).map(each_100_ms).collect::<Vec<_>>());
    // What was leased: twice the units of a lease, and a unit for the next call of each.
    assert!(most <= 100 + 2 * 4 + count, "{most} in a window");
    let part = stalls.least(1.0);
    assert!(use_alone >= 0.5 * part, "{use_alone:.2} of the limit while the store is away");
    assert!(use_after >= 0.8 * part, "{use_after:.2} of the limit when it is back");
    assert!(scripts_end > scripts_back + 10, "the store is not asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_killed_is_stood_in_for() {
    if skip() {
        return;
    }
    outage("live", Outage::Killed).await;
    if is_long() {
        outage("10", Outage::Killed).await;
        outage("live", Outage::KilledTwice).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_is_stood_in_for() {
    if skip() {
        return;
    }
    if is_long() {
        outage("live", Outage::Hangs).await;
    }
    outage(if is_long() { "10" } else { "4" }, Outage::Hangs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_had_is_back_after_a_lease() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let load_ms = 7_000;
    let plan = Plan::new(&redis.url(), (100, 1_000), load_ms);
    let (mut crew, stalls) = (crew(6, &plan).await, Stalls::watch());
    let from = micros_now();
    crew.go().await;
    clock::sleep(ms(2_500)).await;
    for _ in 0..4 {
        crew.kill_last().await;
        clock::sleep(ms(100)).await;
    }
    let killed = (micros_now() - from) / 1_000;
    let starts = starts(&crew.reports().await);
    // What the dead had sent counts for a window; it is not in the reports.
    let after = between(&starts, from, (killed + 1_040, load_ms)) as f64 / ((load_ms - killed - 1_040) as f64 / 10.0);
    println!("{after:.2} of the limit by two of six");
    assert!(after >= stalls.least(0.8), "{after:.2} of the limit");
}

/// Stopped and continued: leases that ended meanwhile are not used.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stood_still_sends_nothing_late() {
    if skip() {
        return;
    }
    let redis = Redis::standalone().await;
    let load_ms = 5_000;
    let plan = Plan::new(&redis.url(), (100, 1_000), load_ms);
    let (mut crew, stalls) = (crew(3, &plan).await, Stalls::watch());
    let from = micros_now();
    crew.go().await;
    for _ in 0..3 {
        clock::sleep(ms(700)).await;
        crew.signal_last("STOP").await;
        clock::sleep(ms(400)).await;
        crew.signal_last("CONT").await;
    }
    let starts = starts(&crew.reports().await);
    let (most, all) = (most_in(&starts, stalls.nearly(SECOND)), between(&starts, from, (1_000, load_ms)));
    println!("most {most}, {all} of 400");
    // What was held when it stopped, by each of its workers, may go out when it goes on.
    assert!(most <= 100 + 8, "{most} in a window");
    assert!(all as f64 >= stalls.least(320.0), "{all} of 400");
}
