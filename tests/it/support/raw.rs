//! A server that says whatever it is told to, byte by byte; and a bound of memory for who has to listen to it.

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

use super::{
    alone::{is_alone, test_of},
    clock,
};

/// What is done with a connection after a request has come.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Writes it.
    Say(Vec<u8>),
    /// Writes it so many times.
    Flood(Vec<u8>, u64),
    /// Writes it again and again, with so long between, until the client is gone.
    Drip(Vec<u8>, Duration),
    /// Waits.
    Pause(Duration),
    /// Is silent until the client is gone.
    Hold,
    /// Closes; otherwise the next request is read.
    Close,
}

/// Writes it.
pub(crate) fn say(text: impl Into<Vec<u8>>) -> Step {
    Step::Say(text.into())
}

/// A server that runs until it is dropped.
pub(crate) struct Raw {
    address: SocketAddr,
    written: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
    task: AbortHandle,
}

type Answers = Arc<dyn Fn(u64) -> Vec<Step> + Send + Sync>;

impl Raw {
    /// Starts one. `answers` is given the number of the request, from 0.
    pub(crate) async fn start(answers: impl Fn(u64) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (written, requests) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let counts = (Arc::clone(&written), Arc::clone(&requests));
        let answers: Answers = Arc::new(answers);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                connections.spawn(serve(tcp, Arc::clone(&answers), counts.clone()));
            }
        });
        Self { address, written, requests, task: task.abort_handle() }
    }

    /// Always the same answer.
    pub(crate) async fn always(steps: Vec<Step>) -> Self {
        Self::start(move |_| steps.clone()).await
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Bytes that the client's machine took.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut tcp: TcpStream, answers: Answers, counts: (Arc<AtomicU64>, Arc<AtomicU64>)) -> Option<()> {
    let _ = tcp.set_nodelay(true);
    let mut unread = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = unread.windows(4).position(|end| end == b"\r\n\r\n") {
                break end + 4;
            }
            tcp.read_buf(&mut unread).await.ok().filter(|read| *read > 0)?;
        };
        unread.drain(..end);
        for step in answers(counts.1.fetch_add(1, Ordering::Relaxed)) {
            follow(&mut tcp, step, &counts.0).await?;
        }
    }
}

async fn follow(tcp: &mut TcpStream, step: Step, written: &AtomicU64) -> Option<()> {
    match step {
        Step::Say(bytes) => write(tcp, &bytes, written).await,
        Step::Flood(bytes, times) => {
            for _ in 0..times {
                write(tcp, &bytes, written).await?;
            }
            Some(())
        }
        Step::Drip(bytes, every) => loop {
            write(tcp, &bytes, written).await?;
            clock::sleep(every).await;
        },
        Step::Pause(time) => {
            clock::sleep(time).await;
            Some(())
        }
        Step::Hold => {
            let mut sink = [0; 4096];
            while tcp.read(&mut sink).await.is_ok_and(|read| read > 0) {}
            None
        }
        Step::Close => None,
    }
}

async fn write(tcp: &mut TcpStream, bytes: &[u8], written: &AtomicU64) -> Option<()> {
    tcp.write_all(bytes).await.ok()?;
    written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    Some(())
}

/// Runs `scene` in a process of its own, the test that it is a closure of in it alone; fails if it takes more memory than
/// `most_mib` beyond what it started with.
pub(crate) fn alone<F: Future<Output = ()>>(most_mib: u64, scene: impl FnOnce() -> F) {
    if !is_alone(&scene) {
        return;
    }
    let name = test_of(&scene);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // Code and tables that any call needs.
        let plain = Raw::always(vec![say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")]).await;
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]);
        let client = abide::Client::builder().http(http).build().unwrap();
        client.get(plain.url()).buffered(10).send().await.unwrap().bytes().await.unwrap();
        let before = kib("VmRSS:");
        scene().await;
        let grown = kib("VmHWM:").saturating_sub(before) / 1024;
        println!("{name}: {grown} MiB at most");
        assert!(grown <= most_mib, "{grown} MiB, at most {most_mib}");
    });
}

/// Of this process.
fn kib(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
