//! Secrets in the options and the rows of `abide run`, and all that it writes and prints searched for them.

use std::{collections::BTreeMap, path::PathBuf, process::Output};

use abide::testing::{Scripted, Server};

use crate::support::job::{self, Folder};

/// Where a secret was put, and the files that may hold it.
struct Planted(Vec<(&'static str, String, &'static [&'static str])>);

impl Planted {
    fn plant(&mut self, place: &'static str, allowed: &'static [&'static str]) -> String {
        let secret = format!("s3cret{:016x}", rand::random::<u64>());
        self.0.push((place, secret.clone(), allowed));
        secret
    }

    #[track_caller]
    fn check(&self, file: &str, text: &str) {
        for (place, secret, allowed) in &self.0 {
            let shown = text.contains(secret.as_str());
            assert!(!shown || allowed.contains(&file), "{file} shows the secret of {place}: {text}");
        }
    }

    /// What is allowed is there, or the list is too long.
    #[track_caller]
    fn check_allowed(&self, file: &str, text: &str) {
        for (place, secret, allowed) in &self.0 {
            assert!(!allowed.contains(&file) || text.contains(secret.as_str()), "{file} has no {place}: {text}");
        }
    }
}

/// Results name the key that a row was sent with: who asks for the charge later needs it.
const KEY: &[&str] = &["results"];
/// It is there to be handed on.
const META: &[&str] = &["results", "dry run"];
/// A dry run shows what would be sent, but for what is known to be a secret.
const PLAIN: &[&str] = &["dry run"];

struct Stage {
    folder: Folder,
    secrets: Planted,
    environment: BTreeMap<String, String>,
    headers: Vec<String>,
    jobs: PathBuf,
}

impl Stage {
    fn new(urls: &[String]) -> Self {
        let (folder, mut secrets) = (Folder::new(), Planted(Vec::new()));
        let mut environment = BTreeMap::new();
        let mut named = |secrets: &mut Planted, place, name: &str| {
            environment.insert(name.to_owned(), secrets.plant(place, &[]));
            format!("env:{name}")
        };
        let headers = vec![
            format!("Authorization: Bearer {}", secrets.plant("-H Authorization", &[])),
            format!("X-Api-Key: {}", named(&mut secrets, "-H X-Api-Key: env:NAME", "ABIDE_TEST_ONE")),
            format!("X-Fresh: {}", named(&mut secrets, "-H X-Fresh: env:NAME", "ABIDE_TEST_TWO")),
            format!(
                "Cookie: a={};b={}",
                named(&mut secrets, "-H Cookie: env:NAME", "ABIDE_TEST_THREE"),
                secrets.plant("-H Cookie: beside env:NAME", &[])
            ),
            format!("X-Plain: {}", secrets.plant("-H X-Plain", PLAIN)),
        ];
        let body_file = folder.write("body", secrets.plant("body_file", PLAIN));
        let mut lines = Vec::new();
        for url in urls {
            let (scheme, rest) = url.split_once("://").unwrap();
            let mut plant = |place, allowed| secrets.plant(place, allowed);
            let url = format!(
                "{scheme}://{}:{}@{rest}/charge?token={}&page={}#{}",
                plant("a user name", &[]),
                plant("a password", &[]),
                plant("a query's token", &[]),
                plant("a query", PLAIN),
                plant("a fragment", PLAIN),
            );
            let headers = serde_json::json!({
                "Authorization": plant("a row's Authorization", &[]),
                "x-auth-token": plant("a row's x-auth-token", &[]),
                "x-client-secret": plant("a row's header with a telling name", &[]),
                "x-more": plant("a row's header", PLAIN),
            });
            let row = serde_json::json!({
                "id": format!("row-{}", lines.len()),
                "method": "POST",
                "url": url,
                "headers": headers,
                "body": plant("a row's body", PLAIN),
                "idempotency_key": plant("a row's key", KEY),
                "meta": plant("a row's meta", META),
            });
            lines.push(row.to_string());
            lines.push(url.clone());
            // Without a user name -H Authorization holds.
            let url = format!("{scheme}://{}", url.split_once('@').unwrap().1);
            lines.push(serde_json::json!({"url": url, "method": "PUT", "body_file": body_file}).to_string());
        }
        lines.extend(nonsense(&urls[0], &mut secrets));
        let jobs = folder.write("jobs", lines.join("\n"));
        Self { folder, secrets, environment, headers, jobs }
    }

    async fn run(&self, options: &str, more: &[&str]) -> Output {
        let mut command = job::command(options, &[&self.jobs]);
        command.envs(&self.environment).current_dir(self.jobs.parent().unwrap());
        for header in &self.headers {
            command.args(["-H", header]);
        }
        command.args(more).output().await.unwrap()
    }
}

/// Rows that make no sense: a value in the wrong place, one of the wrong kind, a broken one.
fn nonsense(url: &str, secrets: &mut Planted) -> Vec<String> {
    let broken = secrets.plant("a broken key", KEY);
    let mut plant = |place| secrets.plant(place, &[]);
    let wrong = [
        format!(r#""headers":"Authorization: {}""#, plant("headers that are a text")),
        format!(r#""headers":{{"authorization":"{}\n"}}"#, plant("a broken header")),
        format!(r#""headers":{{"authorization":{{"a":"{}"}}}}"#, plant("a header that is an object")),
        format!(r#""idempotency_key":["{}"]"#, plant("a key that is a list")),
        format!(r#""idempotency_key":"{broken}\n""#),
        format!(r#""cost":"{}""#, plant("a cost that is a text")),
        format!(r#""body_file":"/dev/null","body":"{}""#, plant("one body too many")),
        format!(r#""meta":"{}"#, plant("a torn row")),
    ];
    let mut lines: Vec<_> = wrong.iter().map(|wrong| format!(r#"{{"url":"{url}/charge",{wrong}}}"#)).collect();
    lines.push(format!("ftp://{}:{}@h.example/?{}", plant("ftp: user"), plant("ftp: password"), plant("ftp: query")));
    lines.push(format!("https://h.example:port/?{}", plant("a broken URL")));
    lines
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const OPTIONS: &str = "-v --progress always --max-attempts 2 --base 1ms --deadline 4s --attempt-timeout 2s";

#[tokio::test]
async fn a_run_shows_no_secret() {
    let repeated = |entry: Scripted| Server::builder().script(vec![entry.repeat(100)]).record().start();
    let there = repeated(Scripted::status(200)).await.unwrap();
    let fine = repeated(Scripted::status(200).header("set-cookie", "s3cret-session")).await.unwrap();
    let [wrong, busy] = [404, 503].map(|status| repeated(Scripted::status(status)));
    let (wrong, busy) = (wrong.await.unwrap(), busy.await.unwrap());
    let away = repeated(Scripted::status(303).header("location", format!("{}/there", there.url()))).await.unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut urls: Vec<_> = [&fine, &wrong, &busy, &away].iter().map(|server| server.url().to_owned()).collect();
    urls.extend([format!("http://{nobody}"), fine.url().replace("http:", "https:"), "http://no.such.invalid".into()]);
    let stage = Stage::new(&urls);

    let dry = stage.run(&format!("{OPTIONS} --dry-run"), &[]).await;
    stage.secrets.check("dry run", &text(&dry.stdout));
    stage.secrets.check_allowed("dry run", &text(&dry.stdout));
    stage.secrets.check("stderr", &text(&dry.stderr));
    assert_eq!(fine.stats().requests, 0);

    let files = ["-o", "out", "--report", "report.html", "--summary", "summary.json"];
    let output = stage.run(OPTIONS, &files).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    stage.secrets.check("stdout", &text(&output.stdout));
    stage.secrets.check("stderr", &text(&output.stderr));
    stage.secrets.check_allowed("results", &stage.folder.read("out"));
    for (name, file) in
        [("results", "out"), ("journal", "out.journal"), ("report", "report.html"), ("summary", "summary.json")]
    {
        let text = stage.folder.read(file);
        assert!(!text.is_empty(), "{file}");
        stage.secrets.check(name, &text);
        assert!(!text.contains("s3cret-session"), "{file} holds a session: {text}");
    }
    // All of it was sent where it belongs, and none of it to the other origin.
    let recorded = fine.recorded();
    let sent: Vec<_> = recorded.iter().map(|request| (&request.headers, &request.body)).collect();
    let sent = format!("{sent:?}");
    for (place, secret, _) in
        stage.secrets.0.iter().filter(|(place, ..)| place.starts_with("-H") || *place == "body_file")
    {
        assert!(sent.contains(secret.as_str()), "the secret of {place} was not even sent: {sent}");
    }
    assert!(there.stats().requests >= 3, "{}", there.stats());
    for request in there.recorded() {
        let held = format!("{:?}", (&request.headers, &request.uri));
        for (place, secret, _) in &stage.secrets.0 {
            // Headers that the caller gave the row and that are no credentials stay: the rules of redirects say so.
            let stays = ["a row's header", "a row's header with a telling name"].contains(place);
            assert!(stays || !held.contains(secret.as_str()), "another origin got the secret of {place}: {held}");
        }
    }
}

#[tokio::test]
async fn a_proxy_and_a_crash_show_no_secret() {
    // All goes through a proxy that is not there.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut stage = Stage::new(&["http://h.example".into(), "https://h.example".into()]);
    let proxy = format!(
        "http://{}:{}@{nobody}",
        stage.secrets.plant("a proxy's user", &[]),
        stage.secrets.plant("a proxy's password", &[])
    );
    for name in ["http_proxy", "https_proxy", "HTTPS_PROXY"] {
        stage.environment.insert(name.to_owned(), proxy.clone());
    }
    let output = stage.run(OPTIONS, &["-o", "out", "--report", "report.html"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(stage.folder.read("out").contains("\"kind\":\"connect\""), "{}", stage.folder.read("out"));
    stage.secrets.check("stderr", &text(&output.stderr));
    stage.secrets.check("results", &stage.folder.read("out"));
    stage.secrets.check("journal", &stage.folder.read("out.journal"));
    stage.secrets.check("report", &stage.folder.read("report.html"));
}

#[tokio::test]
async fn options_that_make_no_sense_show_no_secret() {
    let mut secrets = Planted(Vec::new());
    let mut plant = |place| secrets.plant(place, &[]);
    let headers = [
        format!("Authorization Bearer {}: x", plant("a header with a blank in its name")),
        format!("Authorization Bearer {}", plant("a header without a colon")),
        format!("Authorization: {}\u{7f}", plant("a header with a control")),
        format!("Authorization: {} env:ABIDE_TEST_NOT_THERE", plant("a header with no variable")),
    ];
    for header in headers {
        let mut command = job::command("", &["/dev/null".as_ref()]);
        let output = command.args(["-H", &header]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2));
        secrets.check("stderr", &text(&output.stderr));
    }
}
