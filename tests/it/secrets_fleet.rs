//! The URL of a fleet's store holds a password, and calls hold credentials: nothing says either, nor does the store.

use abide::{Client, Key, KeyBy, Quota, fleet::Fleet};

use crate::support::{
    clock::ms,
    job::{self, Folder, said},
    planted::{Secrets, Traced, forms, story},
    redis::{self, Redis},
    rows::Rows,
    script::Entry,
};
use tracing_subscriber::layer::SubscriberExt;

fn nobody() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn stores_that_make_no_sense_or_are_away() {
    let (mut secrets, traced) = (Secrets::default(), Traced::default());
    let _traced = tracing::subscriber::set_default(tracing_subscriber::registry().with(traced.clone()));
    let mut user = || format!("{}:{}", secrets.plant("a user"), secrets.plant("a password"));
    let port = nobody();
    let wrong = [
        format!("http://{}@h/", user()),
        format!("redis://{}@", user()),
        format!("redis://{}@h:port", user()),
        format!("redis://{}@[h", user()),
        format!("redis://{}@h/none", user()),
        format!("redis+sentinel://{}@h", user()),
        format!("redis+cluster://{}@h,", user()),
        format!("redis+nothing://{}@h", user()),
        format!("{}@h:6379", user()),
    ];
    let away = [
        format!("redis://{}@127.0.0.1:{port}", user()),
        format!("rediss://{}@127.0.0.1:{port}/3", user()),
        format!("redis+cluster://{}@127.0.0.1:{port},127.0.0.1:{port}", user()),
        format!("redis+sentinel://{}@127.0.0.1:{port}/main", user()),
    ];
    let connect = async |url: &String| {
        let builder = Fleet::redis(url.as_str());
        let text = forms(&builder);
        text + &story(&builder.connect().await.unwrap_err())
    };
    let text = futures_util::future::join_all(wrong.iter().chain(&away).map(connect)).await.concat();
    secrets.assert_hidden("a fleet", &(text + &traced.0.lock().unwrap()));

    // The same on the command line.
    let folder = Folder::new();
    let jobs = folder.write("jobs", "http://127.0.0.1:1/");
    let run = async |url: &String| {
        let mut command = job::command("", &[&jobs, "-o".as_ref(), &folder.file("out")]);
        let output = command.args(["--fleet", url]).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        said(&output)
    };
    let text = futures_util::future::join_all(wrong.iter().chain(&away[..2]).map(run)).await.concat();
    assert!(text.contains("--fleet"), "{text}");
    secrets.assert_hidden("the command line", &text);
}

#[tokio::test]
async fn a_store_that_works_and_goes_away() {
    if redis::skip() {
        return;
    }
    let (mut secrets, traced) = (Secrets::default(), Traced::default());
    let _traced = tracing::subscriber::set_default(tracing_subscriber::registry().with(traced.clone()));
    let mut store = Redis::standalone().await;
    let (user, password) = (secrets.plant("a user"), secrets.plant("a password"));
    store.cli(&["ACL", "SETUSER", &user, "on", &format!(">{password}"), "~*", "&*", "+@all"]);
    let place = store.url().trim_start_matches("redis://").to_owned();
    let url = format!("redis://{user}:{password}@{place}");

    // A wrong password is an answer of the store's.
    let wrong = format!("redis://{user}:{}@{place}", secrets.plant("a wrong password"));
    let error = Fleet::redis(wrong).connect().await.unwrap_err();
    let mut text = story(&error);

    let rows = Rows::start(Entry::status(200), [].into()).await;
    let fleet = Fleet::redis(url.as_str()).connect().await.unwrap();
    let builder = Client::builder().quota(Quota::per_second(100)).fleet(fleet.clone());
    text += &forms(&builder);
    let tenant = secrets.plant("KeyBy::with");
    let client = builder.key_by(KeyBy::with(move |_| Key::from(tenant.as_str()))).build().unwrap();
    for n in 0..20 {
        let call = client.get(rows.url(n)).bearer_auth(secrets.plant("bearer_auth")).key(secrets.plant("key()"));
        call.send().await.unwrap();
        client.get(rows.url(n)).header("x-api-key", secrets.plant("x-api-key")).send().await.unwrap();
    }
    let held: Vec<String> = store.keys().into_iter().map(|(name, _)| name).collect();
    assert!(!held.is_empty(), "the store was asked");
    for name in &held {
        let read: &[&str] = match store.cli(&["TYPE", name]).as_str() {
            "string" => &["GET", name],
            "hash" => &["HGETALL", name],
            "set" => &["SMEMBERS", name],
            "list" => &["LRANGE", name, "0", "-1"],
            _ => &["ZRANGE", name, "0", "-1", "WITHSCORES"],
        };
        let value = store.cli(read);
        assert!(!value.trim().is_empty(), "{name} is read");
        text += &value;
    }
    secrets.assert_hidden("the store", &(held.join("\n") + &text));

    // On the command line, by way of the environment.
    let folder = Folder::new();
    let jobs = folder.write("jobs", (0..20).map(|n| rows.url(n) + "\n").collect::<String>());
    let files = ["-o", "out", "--report", "report.html", "--summary", "summary.json"];
    let mut command = job::command("-v --limit 50/s", &[&jobs]);
    command.current_dir(jobs.parent().unwrap()).env("ABIDE_TEST_STORE", &password).args(files);
    let output = command.args(["--fleet", &format!("redis://{user}:env:ABIDE_TEST_STORE@{place}")]).output().await;
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let files = ["out", "out.journal", "report.html", "summary.json"].map(|file| folder.read(file));
    assert!(files.iter().all(|file| !file.is_empty()));
    secrets.assert_hidden("a run", &(said(&output) + &files.concat()));

    // Lost, and told so.
    store.kill();
    for n in 0..10 {
        let _ = client.get(rows.url(n)).deadline(ms(300)).send().await;
    }
    text += &(forms(&client) + &forms(&fleet) + &forms(client.limiter()));
    let traced = traced.0.lock().unwrap().clone();
    assert!(traced.contains("store lost"), "{traced}");
    secrets.assert_hidden("a store that is lost", &(text + &traced));
}
