//! The script's arithmetic against the limiter of one process, step by step, in a real redis-server.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use proptest::prelude::*;
use redis::{Client, Connection, Value};

use super::{
    redis::{Names, SCRIPT, read},
    store::{Line, Reply, Request},
    terms::Terms,
};
use crate::limit::{Quota, meter::Meter, tick::Tick};

/// A server on a socket of its own.
struct Server {
    child: Child,
    folder: PathBuf,
}

impl Server {
    /// `None`: a machine without one.
    fn start() -> Option<(Self, Connection)> {
        if std::env::var("ABIDE_SKIP_REDIS").is_ok_and(|skip| skip == "1") {
            return None;
        }
        let folder =
            std::env::temp_dir().join(format!("abide-script-{}-{}", std::process::id(), rand::random::<u32>()));
        std::fs::create_dir(&folder).unwrap();
        let socket = folder.join("socket");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).arg("--dir").arg(&folder);
        let child = command.stdout(Stdio::null()).stdin(Stdio::null()).spawn();
        let child = child.expect("redis-server is not installed: install it, or set ABIDE_SKIP_REDIS=1");
        let server = Self { child, folder };
        let client = Client::open(format!("redis+unix://{}", socket.display())).unwrap();
        for _ in 0..3_000 {
            if let Ok(connection) = client.get_connection() {
                return Some((server, connection));
            }
            wait_a_little();
        }
        unreachable!("redis-server does not start")
    }
}

#[expect(clippy::disallowed_methods, reason = "a process comes up in its own time")]
fn wait_a_little() {
    std::thread::sleep(Duration::from_millis(10));
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The script as it is, but told the time.
struct Script<'a> {
    connection: &'a mut Connection,
    text: String,
    names: Names,
}

impl<'a> Script<'a> {
    fn new(connection: &'a mut Connection) -> Self {
        let clock = "redis.call('TIME')";
        assert_eq!(SCRIPT.matches(clock).count(), 1);
        let text = SCRIPT.replace(clock, "{ 0, ARGV[#ARGV] }");
        let _: Value = redis::cmd("FLUSHALL").query(connection).unwrap();
        Self { connection, text, names: Names::new("t".into(), "m".into()) }
    }

    /// Another process.
    fn turn_to(&mut self, member: &str) {
        self.names = Names::new("t".into(), member.into());
    }

    fn call(&mut self, lines: Vec<Line>, now: u64) -> Reply {
        let request = Request { key: "k".into(), lines, ..Request::default() };
        let mut call = self.names.call("EVAL", &self.text, &request);
        read(call.arg(now).query(self.connection).unwrap(), request.lines.len()).unwrap()
    }
}

fn line(quota: &Quota, span: u64) -> Line {
    // Without a lease nothing is saved for one.
    let terms = Terms { span, burst: f64::from(quota.burst_units()), lease: 0, ..Terms::of(quota, 0) };
    Line {
        id: "q".into(),
        terms,
        fresh: true,
        birth: quota.burst_units(),
        meta: Box::default(),
        want: 0,
        need: 0,
        must: 0,
        told: None,
        returns: Vec::new(),
        owed: Vec::new(),
    }
}

/// After so many microseconds: a cost is asked for, or a grant goes back.
type Steps = Vec<(u64, Result<u64, usize>)>;

fn steps() -> impl Strategy<Value = Steps> {
    let step = prop_oneof![4 => (1u64..8).prop_map(Ok), 1 => (0usize..8).prop_map(Err)];
    proptest::collection::vec((0u64..40_000, step), 1..80)
}

/// Both grant the same, at each step.
fn both_agree(script: &mut Script<'_>, quota: &Quota, span: u64, steps: &Steps) {
    let mut meter = Meter::full(quota, Tick::default());
    let (mut now, mut granted) = (1_000_000u64, Vec::<(u64, u64, Tick)>::new());
    for (dt, step) in steps {
        now += dt;
        let tick = Tick::from_nanos(now * 1_000);
        meter.advance(tick, false);
        match *step {
            Ok(cost) => {
                let asked = Line { want: cost, need: cost, ..line(quota, span) };
                let reply = script.call(vec![asked], now);
                let ready = meter.is_ready(cost, tick);
                assert_eq!(reply.granted[0].units, if ready { cost } else { 0 }, "at {now}: {quota:?}");
                if ready {
                    meter.hold(cost);
                    meter.commit(cost, tick);
                    granted.push((reply.granted[0].slice, cost, tick));
                }
            }
            Err(index) if index < granted.len() && span > 0 => {
                let (slice, cost, sent) = granted.swap_remove(index);
                meter.settle(cost, 0, sent, tick);
                script.call(vec![Line { returns: vec![(slice, cost)], ..line(quota, span) }], now);
            }
            Err(_) => {}
        }
    }
}

#[test]
fn the_script_grants_what_the_limiter_of_one_process_would() {
    let Some((_server, connection)) = Server::start() else { return };
    let connection = std::cell::RefCell::new(connection);
    let settings = |cases| ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let runner = |cases| proptest::test_runner::TestRunner::new(settings(cases));
    // Spans in whole slices: one counts in nanoseconds, the other in microseconds.
    let window = (1u32..40, 1u64..16, 1u32..40, steps());
    let outcome = runner(150).run(&window, |(n, span, burst, steps)| {
        let span = span * 64_000;
        let quota = Quota::window(n, Duration::from_micros(span)).burst(burst.min(n));
        both_agree(&mut Script::new(&mut connection.borrow_mut()), &quota, span, &steps);
        Ok(())
    });
    outcome.unwrap();
    let bucket = (1u32..40, 1u64..1_000_000, 1u32..40, steps());
    let outcome = runner(150).run(&bucket, |(n, per, burst, steps)| {
        let quota = Quota::bucket(n, Duration::from_micros(per)).burst(burst);
        let steps: Steps = steps.into_iter().map(|(dt, step)| (dt, step.map(|cost| cost.min(burst.into())))).collect();
        both_agree(&mut Script::new(&mut connection.borrow_mut()), &quota, 0, &steps);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn several_quotas_are_taken_all_or_none_and_time_never_goes_back() {
    let Some((_server, mut connection)) = Server::start() else { return };
    let mut script = Script::new(&mut connection);
    let (many, few) = (Quota::bucket(10, Duration::from_secs(1)), Quota::bucket(3, Duration::from_secs(1)));
    let asks = |want, need| {
        let ask = |id: &str, quota| Line { id: id.into(), want, need, ..line(quota, 0) };
        vec![ask("many", &many), ask("few", &few)]
    };
    let units = |reply: Reply| reply.granted.iter().map(|granted| granted.units).collect::<Vec<_>>();
    assert_eq!(units(script.call(asks(1, 1), 5_000_000)), [1, 1]);
    assert_eq!(units(script.call(asks(3, 3), 5_000_000)), [0, 0]);
    assert_eq!(units(script.call(asks(6, 1), 5_000_000)), [2, 2]);
    // The clock of the store falls back by hours: nothing comes back for that, and time goes on from where it was.
    assert_eq!(units(script.call(asks(1, 1), 1_000)), [0, 0]);
    assert_eq!(units(script.call(asks(1, 1), 1_000 + 334_000)), [1, 1]);
    let owing = Line { owed: vec![(0, 20)], ..line(&many, 0) };
    script.call(vec![Line { id: "many".into(), ..owing }], 400_000);
    assert_eq!(units(script.call(asks(1, 1), 1_400_000)), [0, 0]);
}

/// Beside a process that takes each unit as it comes.
#[test]
fn a_call_that_costs_much_is_served() {
    let Some((_server, mut connection)) = Server::start() else { return };
    let mut script = Script::new(&mut connection);
    let quota = Quota::bucket(100, Duration::from_secs(1)).burst(50);
    let (mut now, mut again, mut served, mut light) = (1_000_000, 0, 0, 0);
    while now < 11_000_000 {
        script.turn_to("light");
        light += script.call(vec![Line { want: 5, need: 1, ..line(&quota, 0) }], now).granted[0].units;
        if now >= again {
            script.turn_to("heavy");
            let reply = script.call(vec![Line { want: 40, need: 40, ..line(&quota, 0) }], now);
            served += reply.granted[0].units / 40;
            again = now + reply.retry;
        }
        now += 10_000;
    }
    assert!((8..=16).contains(&served), "{served} times 40 of 1,000 units");
    assert!(light >= 300 && served * 40 + light >= 950, "{light} units for the others, {served} times 40");
}

/// What is kept for a call that costs much is kept while its process asks for it.
#[test]
fn a_call_that_costs_much_and_has_gone_holds_nobody_up() {
    let Some((_server, mut connection)) = Server::start() else { return };
    let mut script = Script::new(&mut connection);
    let (quota, span) = (Quota::window(20, Duration::from_secs(600)).burst(20), 600_000_000);
    script.turn_to("light");
    let asks = |units| vec![Line { want: units, need: units, ..line(&quota, span) }];
    assert_eq!(script.call(asks(18), 1_000_000).granted[0].units, 18);
    script.turn_to("heavy");
    let reply = script.call(asks(5), 1_500_000);
    assert!(reply.granted[0].units == 0 && reply.retry <= 1_000_000, "{reply:?}");
    script.turn_to("light");
    assert_eq!(script.call(asks(1), 2_000_000).granted[0].units, 0);
    assert_eq!(script.call(asks(1), 3_000_000).granted[0].units, 1);
}

/// What was sent while the store was away counts for its window, and no longer.
#[test]
fn what_is_owed_is_no_debt_of_a_window() {
    let Some((_server, mut connection)) = Server::start() else { return };
    let mut script = Script::new(&mut connection);
    let quota = Quota::window(100, Duration::from_millis(1_024));
    let owing = Line { owed: vec![(512_000, 60), (0, 40)], ..line(&quota, 1_024_000) };
    assert_eq!(script.call(vec![owing], 5_000_000).granted[0].left, 0);
    let asked = || vec![Line { want: 10, need: 1, ..line(&quota, 1_024_000) }];
    assert_eq!(script.call(asked(), 5_500_000).granted[0].units, 0);
    // The sixty of half a window before count no longer.
    let units = script.call(asked(), 5_540_000).granted[0].units;
    assert!((1..=10).contains(&units), "{units}");
    assert_eq!(script.call(vec![line(&quota, 1_024_000)], 5_540_000).granted[0].left, 60 - units);
}

/// However late what was granted is sent: in any span t no more than burst + n·t/per. A burst of less than what comes
/// back during a lease, and one unit, is beyond that.
#[test]
fn a_bucket_holds_though_its_leases_are_sent_late() {
    let Some((_server, connection)) = Server::start() else { return };
    let connection = std::cell::RefCell::new(connection);
    let settings = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    let step = (0u64..150_000, 1u64..6);
    let given = (1u32..60, 3u32..40, proptest::collection::vec(step, 1..60));
    let outcome = proptest::test_runner::TestRunner::new(settings).run(&given, |(n, burst, steps)| {
        let quota = Quota::bucket(n, Duration::from_secs(1)).burst(burst);
        let terms = Terms::of(&quota, 0);
        prop_assume!(f64::from(burst) - f64::from(n) * terms.lease as f64 / 1e6 >= 1.0);
        let mut connection = connection.borrow_mut();
        let mut script = Script::new(&mut connection);
        let (mut now, mut granted) = (1_000_000, Vec::<(u64, u64)>::new());
        for (dt, want) in steps {
            now += dt;
            let asked = Line { terms: terms.clone(), want, need: 1, ..line(&quota, 0) };
            granted.push((now, script.call(vec![asked], now).granted[0].units));
        }
        // The worst: all of a span's first lease is sent at its end.
        for (first, (from, _)) in granted.iter().enumerate() {
            let mut sum = 0;
            for (at, units) in &granted[first..] {
                sum += units;
                let span = (at - from).saturating_sub(terms.lease) as f64 / 1e6;
                let most = f64::from(burst) + f64::from(n) * span;
                prop_assert!(sum as f64 <= most + 1e-6, "{sum} in {span} s: {quota:?}");
            }
        }
        Ok(())
    });
    outcome.unwrap();
}
