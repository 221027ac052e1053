//! A server for files of rows: it answers by row, counts what it saw, and remembers little enough for a million of
//! them.
#![expect(clippy::unwrap_used, reason = "a test on processes fails by panic")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::{clock, script::Entry};

/// A server whose path `/N` is row N. It runs until it is dropped.
pub(crate) struct Rows {
    address: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

struct State {
    default: Entry,
    rows: BTreeMap<u64, Vec<Entry>>,
    book: Mutex<Book>,
}

/// What it saw.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) arrivals: Vec<Instant>,
    /// Keys by row, one for each request.
    pub(crate) keys: BTreeMap<u64, Vec<Option<String>>>,
    /// Rows whose answer was written.
    pub(crate) answered: BTreeSet<u64>,
}

impl Rows {
    /// Starts one. Row n is answered with its entries in turn, the last one again and again.
    pub(crate) async fn start(default: Entry, rows: BTreeMap<u64, Vec<Entry>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { default, rows, book: Mutex::default() });
        let task = tokio::spawn(listen(listener, Arc::clone(&state))).abort_handle();
        Self { address, state, task }
    }

    /// Where row n is.
    pub(crate) fn url(&self, row: u64) -> String {
        format!("http://{}/{row}", self.address)
    }

    /// What it saw so far.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.state.book.lock().unwrap()
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        let _ = tcp.set_nodelay(true);
        connections.spawn(serve(tcp, Arc::clone(&state)));
    }
}

/// Requests of one connection, until it breaks.
async fn serve(mut tcp: TcpStream, state: Arc<State>) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let (row, key, length) = head(&mut tcp, &mut read).await?;
        while read.len() < length {
            more(&mut tcp, &mut read).await?;
        }
        read.drain(..length);
        let seen = {
            let mut book = state.book.lock().unwrap();
            book.arrivals.push(clock::now());
            let keys = book.keys.entry(row).or_default();
            keys.push(key);
            keys.len() - 1
        };
        let entry = match state.rows.get(&row) {
            Some(entries) => entries.get(seen).or_else(|| entries.last()).unwrap_or(&state.default),
            None => &state.default,
        };
        clock::sleep(clock::ms(entry.delay_ms.unwrap_or(0))).await;
        let body = entry.full_body();
        let mut answer = format!("HTTP/1.1 {} X\r\ncontent-length: {}\r\n", entry.status.unwrap_or(200), body.len());
        for (name, value) in &entry.headers {
            answer.push_str(&format!("{name}: {value}\r\n"));
        }
        answer.push_str("\r\n");
        tcp.write_all(&[answer.as_bytes(), &body].concat()).await.ok()?;
        state.book.lock().unwrap().answered.insert(row);
    }
}

/// Row, key and length of the body.
async fn head(tcp: &mut TcpStream, read: &mut Vec<u8>) -> Option<(u64, Option<String>, usize)> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut fields);
        if let httparse::Status::Complete(end) = request.parse(read).ok()? {
            let row = request.path?.trim_start_matches('/').parse().ok()?;
            let field = |name: &str| {
                let field = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
                String::from_utf8(field.value.to_vec()).ok()
            };
            let (key, length) = (field("idempotency-key"), field("content-length"));
            let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            read.drain(..end);
            return Some((row, key, length));
        }
        more(tcp, read).await?;
    }
}

async fn more(tcp: &mut TcpStream, read: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 8192];
    let length = tcp.read(&mut buffer).await.ok().filter(|length| *length > 0)?;
    read.extend_from_slice(&buffer[..length]);
    Some(())
}
