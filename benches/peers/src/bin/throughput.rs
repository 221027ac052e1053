//! Calls a second on loopback, without a limit, each client against bare reqwest in the same round; and what it
//! allocates.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml --bin throughput [rounds]`

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use abide_peers::{PEERS, Peer, Server};
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

const WORKERS: usize = 8;
const CALLS: usize = 250;

/// Counts what is allocated, of all clients alike.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: hands everything on to the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(1, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(1, Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("server") {
        return abide_peers::serve();
    }
    let rounds = first.and_then(|rounds| rounds.parse().ok()).unwrap_or(41);
    let server = Server::start()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let names = PEERS.into_iter().chain(["abide, one attempt", "abide, quota"]);
    let mut runs: Vec<Run> = names.map(|name| Run::new(name, &runtime, &server.1)).collect();
    for round in 0..rounds {
        // Who comes first changes, so that nobody always follows the same one.
        for place in 0..runs.len() {
            let at = (place + round) % runs.len();
            runs[at].round(&runtime, &server.1);
        }
    }
    let bare = runs[0].seconds.clone();
    let allocated = runs[0].allocated;
    println!(
        "| client | calls/s | ÷ reqwest, same round: median (quartiles) | CPU a call, µs | ÷ reqwest | allocations added |"
    );
    println!("| --- | --: | --: | --: | --: | --: |");
    let bare_cpu = runs[0].cpu.clone();
    for run in &runs {
        let [low, middle, high] = quartiles(ratios(&bare, &run.seconds));
        let [cpu_low, cpu, cpu_high] = quartiles(ratios(&bare_cpu, &run.cpu));
        let [_, seconds, _] = quartiles(run.seconds.clone());
        let [_, each, _] = quartiles(run.cpu.clone());
        let (rate, more) = ((WORKERS * CALLS) as f64 / seconds, run.allocated - allocated);
        println!(
            "| {} | {rate:.0} | {middle:.3} ({low:.3} to {high:.3}) | {:.1} | {cpu:.3} ({cpu_low:.3} to {cpu_high:.3}) | {more:+.1} |",
            run.name,
            each * 1e6 / (WORKERS * CALLS) as f64
        );
    }
    println!("\nreqwest allocates {allocated:.1} times a call");
    Ok(())
}

struct Run {
    name: &'static str,
    peer: Peer,
    /// Of each round, by the clock and on the CPU.
    seconds: Vec<f64>,
    cpu: Vec<f64>,
    allocated: f64,
}

impl Run {
    /// Connected and warm.
    fn new(name: &'static str, runtime: &Runtime, url: &str) -> Self {
        let _inside = runtime.enter();
        let peer = Peer::of(name).expect("a name of the list");
        let mut run = Self { name, peer, seconds: Vec::new(), cpu: Vec::new(), allocated: 0.0 };
        run.round(runtime, url);
        (run.seconds, run.cpu) = (Vec::new(), Vec::new());
        let before = ALLOCATED.load(Relaxed);
        runtime.block_on(async {
            for _ in 0..CALLS {
                run.peer.get(url).await;
            }
        });
        run.allocated = (ALLOCATED.load(Relaxed) - before) as f64 / CALLS as f64;
        run
    }

    fn round(&mut self, runtime: &Runtime, url: &str) {
        let (started, before) = (Instant::now(), cpu());
        let workers = (0..WORKERS).map(|_| {
            let mut peer = self.peer.clone();
            async move {
                for _ in 0..CALLS {
                    peer.get(url).await;
                }
            }
        });
        runtime.block_on(join_all(workers));
        self.seconds.push(started.elapsed().as_secs_f64());
        self.cpu.push(cpu() - before);
    }
}

/// Seconds that this thread, which does all the work, has spent on a CPU, in the kernel too.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

fn ratios(bare: &[f64], own: &[f64]) -> Vec<f64> {
    bare.iter().zip(own).map(|(bare, own)| bare / own).collect()
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
