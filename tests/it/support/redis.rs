//! Real Redis servers, each in a folder of its own on free ports of the loopback.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test on processes fails by panic")]

use std::{
    fs::File,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use redis::{Client, Value};

use super::{clock, job::Folder};

/// Servers that run until this is dropped.
pub(crate) struct Redis {
    nodes: Vec<Node>,
    /// Watches the first node.
    sentinel: Option<Node>,
    is_cluster: bool,
    /// Dropped after the servers.
    _folder: Folder,
}

struct Node {
    port: u16,
    home: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

/// Whether tests on Redis are to be left out: `ABIDE_SKIP_REDIS=1`. Says so.
pub(crate) fn skip() -> bool {
    let skip = std::env::var("ABIDE_SKIP_REDIS").is_ok_and(|value| value == "1");
    if skip {
        println!("left out: ABIDE_SKIP_REDIS=1");
    }
    skip
}

/// How long a server may take to come up on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

impl Redis {
    /// One server that keeps nothing on the disk.
    pub(crate) async fn standalone() -> Self {
        Self::one(&["--save", "", "--appendonly", "no"]).await
    }

    /// One server whose data survive its end.
    pub(crate) async fn durable() -> Self {
        Self::one(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// One server with these options.
    pub(crate) async fn one(options: &[&str]) -> Self {
        let folder = Folder::new();
        let node = Node::start(&folder, "one", options).await;
        Self { nodes: vec![node], sentinel: None, is_cluster: false, _folder: folder }
    }

    /// A cluster of so many masters.
    pub(crate) async fn cluster(masters: u16) -> Self {
        Self::cluster_behind(&vec![None; masters.into()]).await
    }

    /// A cluster of as many masters, which name these ports as theirs.
    pub(crate) async fn cluster_behind(ports: &[Option<u16>]) -> Self {
        let masters = u16::try_from(ports.len()).unwrap();
        let folder = Folder::new();
        let mut nodes = Vec::new();
        for (number, shown) in ports.iter().enumerate() {
            let (bus, shown) = (free_port().to_string(), shown.unwrap_or_default().to_string());
            let mut options = vec!["--save", "", "--appendonly", "no", "--cluster-enabled", "yes"];
            options.extend(["--cluster-announce-port", &shown]);
            options.extend(["--cluster-node-timeout", "5000", "--cluster-port", &bus]);
            nodes.push(Node::start(&folder, &format!("node-{number}"), &options).await);
        }
        let slot = |number: u16| u32::from(number) * 16384 / u32::from(masters);
        for (number, node) in (0..masters).zip(&nodes) {
            let (first, last) = (slot(number).to_string(), (slot(number + 1) - 1).to_string());
            node.ask(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).unwrap();
            node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).unwrap();
        }
        // Each to each: gossip alone takes seconds.
        for (node, other) in nodes.iter().flat_map(|node| nodes.iter().map(move |other| (node, other))) {
            if node.port != other.port {
                let bus = other.arguments.last().unwrap();
                node.ask(&["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string(), bus]).unwrap();
            }
        }
        let redis = Self { nodes, sentinel: None, is_cluster: true, _folder: folder };
        redis.settle().await;
        redis
    }

    /// A master of the name `main`, and a sentinel that knows it.
    pub(crate) async fn sentinel() -> Self {
        Self::sentinel_before(|port| port).await
    }

    /// As [`sentinel`](Self::sentinel); the sentinel knows the master by another port, which leads to its own.
    pub(crate) async fn sentinel_before(port: impl FnOnce(u16) -> u16) -> Self {
        let mut redis = Self::standalone().await;
        let port = port(redis.nodes[0].port);
        let watch = format!("sentinel monitor main 127.0.0.1 {port} 1\nsentinel down-after-milliseconds main 2000\n");
        let file = redis._folder.write("sentinel.conf", watch);
        redis.sentinel = Some(Node::start(&redis._folder, "sentinel", &[&file.to_string_lossy(), "--sentinel"]).await);
        redis
    }

    /// As [`sentinel`](Self::sentinel), with a replica that takes the master's place.
    pub(crate) async fn sentinel_with_replica() -> Self {
        let mut redis = Self::sentinel().await;
        let port = redis.nodes[0].port.to_string();
        let options = ["--save", "", "--appendonly", "no", "--replicaof", "127.0.0.1", &port];
        redis.nodes.push(Node::start(&redis._folder, "replica", &options).await);
        let until = clock::now() + PATIENCE;
        let is_known =
            |node: &Node| node.ask(&["SENTINEL", "REPLICAS", "main"]).is_ok_and(|said| said.contains("name"));
        while !redis.nodes[1].is_in_step() || !redis.sentinel.as_ref().is_some_and(is_known) {
            assert!(clock::now() < until, "no replica after {PATIENCE:?}");
            clock::sleep(clock::ms(50)).await;
        }
        redis
    }

    /// A cluster of three masters; a fourth server takes the place of the first one.
    pub(crate) async fn cluster_with_replica() -> Self {
        let mut redis = Self::cluster(3).await;
        let bus = free_port().to_string();
        let options = ["--save", "", "--appendonly", "no", "--cluster-enabled", "yes", "--cluster-port", &bus];
        let replica = Node::start(&redis._folder, "replica", &options).await;
        let own = replica.port.to_string();
        for node in &redis.nodes {
            node.ask(&["CLUSTER", "MEET", "127.0.0.1", &own, &bus]).unwrap();
            node.ask(&["CONFIG", "SET", "cluster-node-timeout", "1500"]).unwrap();
        }
        replica.ask(&["CONFIG", "SET", "cluster-node-timeout", "1500"]).unwrap();
        redis.nodes.push(replica);
        redis.settle().await;
        let master = redis.nodes[0].ask(&["CLUSTER", "MYID"]).unwrap();
        let until = clock::now() + PATIENCE;
        let mut is_told = false;
        while !is_told || !redis.nodes[3].is_in_step() {
            assert!(clock::now() < until, "no replica after {PATIENCE:?}");
            is_told = is_told || redis.nodes[3].ask(&["CLUSTER", "REPLICATE", &master]).is_ok();
            clock::sleep(clock::ms(50)).await;
        }
        redis
    }

    /// One server that listens with TLS too: and at which port.
    pub(crate) async fn with_tls() -> (Self, u16) {
        let (folder, port) = (Folder::new(), free_port());
        let (certificate, key) = super::tls::self_signed();
        let (certificate, key) = (folder.write("cert.pem", certificate), folder.write("key.pem", key));
        let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
        let tls = ["--tls-port", &port.to_string(), "--tls-auth-clients", "no", "--save", ""].map(str::to_owned);
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key].map(str::to_owned);
        let options: Vec<&str> = tls.iter().chain(&files).map(String::as_str).collect();
        let node = Node::start(&folder, "one", &options).await;
        (Self { nodes: vec![node], sentinel: None, is_cluster: false, _folder: folder }, port)
    }

    /// Where it is, as abide takes it.
    pub(crate) fn url(&self) -> String {
        let host = |node: &Node| format!("127.0.0.1:{}", node.port);
        match &self.sentinel {
            Some(sentinel) => format!("redis+sentinel://{}/main", host(sentinel)),
            None if self.is_cluster => {
                format!("redis+cluster://{}", self.nodes.iter().map(host).collect::<Vec<_>>().join(","))
            }
            None => format!("redis://{}", host(&self.nodes[0])),
        }
    }

    /// Of its servers, not of a sentinel.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.port).collect()
    }

    /// SIGKILL to all servers, not to a sentinel.
    pub(crate) fn kill(&mut self) {
        self.nodes.iter_mut().for_each(Node::kill);
    }

    /// SIGKILL to one of them.
    pub(crate) fn kill_one(&mut self, number: usize) {
        self.nodes[number].kill();
    }

    /// What a command comes to at one of them; nothing if it does not answer.
    pub(crate) fn cli_at(&self, number: usize, words: &[&str]) -> String {
        self.nodes[number].ask(words).unwrap_or_default()
    }

    /// Starts the servers again that are dead, on their ports; what was not on the disk is gone.
    pub(crate) async fn start(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.child.is_none()) {
            assert!(node.spawn().await, "a server does not come back: {}", node.said());
        }
        self.settle().await;
    }

    /// Kills the servers, and starts them after a while.
    pub(crate) async fn restart(&mut self, down: Duration) {
        self.kill();
        clock::sleep(down).await;
        self.start().await;
    }

    /// SIGSTOP: connections stay, nothing is answered.
    pub(crate) fn pause(&self) {
        self.nodes.iter().for_each(|node| node.signal("STOP"));
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.nodes.iter().for_each(|node| node.signal("CONT"));
    }

    /// All keys of all servers, and how many milliseconds each has to live: −1 for ever.
    pub(crate) fn keys(&self) -> Vec<(String, i64)> {
        let mut all = Vec::new();
        for node in self.nodes.iter().filter(|node| node.child.is_some()) {
            let keys = node.ask(&["KEYS", "*"]).unwrap();
            for key in keys.lines() {
                let ttl: i64 = node.ask(&["PTTL", key]).unwrap().parse().unwrap();
                // One that has gone meanwhile is none.
                if ttl != -2 {
                    all.push((key.to_owned(), ttl));
                }
            }
        }
        all
    }

    /// What a command comes to at every server, lists as lines.
    pub(crate) fn cli_each(&self, words: &[&str]) -> Vec<String> {
        self.nodes.iter().map(|node| node.ask(words).unwrap()).collect()
    }

    /// What a command comes to, lists as lines; in a cluster at whichever node has the key.
    pub(crate) fn cli(&self, words: &[&str]) -> String {
        let mut said = String::new();
        for node in &self.nodes {
            match node.ask(words) {
                Ok(answer) => return answer,
                Err(error) => said = error,
            }
            if !said.starts_with("Moved") {
                break;
            }
        }
        panic!("{words:?}: {said}")
    }

    /// Waits until a cluster is one.
    async fn settle(&self) {
        let all = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
        let is_settled = |node: &Node| {
            let info = node.ask(&["CLUSTER", "INFO"]).unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384") && info.contains(&all)
        };
        let until = clock::now() + PATIENCE;
        while self.is_cluster && !self.nodes.iter().all(is_settled) {
            assert!(clock::now() < until, "no cluster after {PATIENCE:?}");
            clock::sleep(clock::ms(20)).await;
        }
    }
}

impl Node {
    /// Starts one. Should another process take its port first, it takes the next.
    async fn start(folder: &Folder, name: &str, options: &[&str]) -> Self {
        let home = folder.file(name);
        std::fs::create_dir(&home).unwrap();
        let mut node = Self { port: 0, home, arguments: Vec::new(), child: None };
        for _ in 0..10 {
            node.port = free_port();
            let is_file = options.first().is_some_and(|option| !option.starts_with('-'));
            let (file, rest) = options.split_at(usize::from(is_file));
            let (port, home) = (node.port.to_string(), node.home.to_string_lossy().into_owned());
            let own = ["--port", &port, "--bind", "127.0.0.1", "--dir", &home];
            node.arguments = file.iter().chain(&own).chain(rest).map(|&word| word.to_owned()).collect();
            if node.spawn().await {
                return node;
            }
        }
        panic!("redis-server does not start: {}", node.said());
    }

    /// Whether it came up.
    async fn spawn(&mut self) -> bool {
        let log = File::options().create(true).append(true).open(self.home.join("log")).unwrap();
        let mut command = Command::new("redis-server");
        command.args(&self.arguments).stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        let child = command.spawn();
        let child = child.expect("redis-server is not installed: install it, or set ABIDE_SKIP_REDIS=1");
        self.child = Some(child);
        let until = clock::now() + PATIENCE;
        while clock::now() < until {
            match self.ask(&["PING"]) {
                Ok(_) => return true,
                // One with a password is there.
                Err(error) if error.contains("Authentication required") => return true,
                Err(_) => {}
            }
            if self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some()) {
                break;
            }
            clock::sleep(clock::ms(10)).await;
        }
        self.kill();
        false
    }

    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let patience = Duration::from_secs(10);
        let ask = || {
            let client = Client::open(format!("redis://127.0.0.1:{}", self.port))?;
            let mut connection = client.get_connection_with_timeout(patience)?;
            connection.set_read_timeout(Some(patience))?;
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            command.query::<Value>(&mut connection)
        };
        ask().map(|value| shown(&value)).map_err(|error| error.to_string())
    }

    /// Whether it is a replica that has its master's data.
    fn is_in_step(&self) -> bool {
        self.ask(&["INFO", "replication"]).is_ok_and(|said| said.contains("master_link_status:up"))
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, name: &str) {
        let Some(child) = &self.child else { return };
        let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "no SIG{name}");
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Below those that the system gives to whoever asks for any, so that a server finds it free when it comes back.
fn free_port() -> u16 {
    loop {
        let port = rand::random_range(15_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Nil => "(nil)".into(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".into(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join("\n"),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn servers_come_go_and_come_back() {
    if skip() {
        return;
    }
    let mut redis = Redis::durable().await;
    assert_eq!(redis.cli(&["SET", "a", "1"]), "OK");
    redis.restart(clock::ms(10)).await;
    assert_eq!(redis.cli(&["GET", "a"]), "1");
    let mut cluster = Redis::cluster(3).await;
    for key in ["a", "b", "c", "d"] {
        assert_eq!(cluster.cli(&["SET", key, "1"]), "OK");
    }
    cluster.restart(clock::ms(10)).await;
    assert_eq!((cluster.cli(&["GET", "a"]).as_str(), cluster.ports().len()), ("(nil)", 3));
    let redis = Redis::sentinel().await;
    redis.pause();
    redis.resume();
    assert_eq!((redis.cli(&["PING"]).as_str(), redis.url().ends_with("/main")), ("PONG", true));
}
