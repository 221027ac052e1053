//! Redirects and polls in memory: what goes where, and what stays at home.

use std::time::Duration;

use abide::{
    Backoff, Client, ClientBuilder, Policy, ResponseExt, Stop,
    http::{HeaderMap, HeaderName, HeaderValue},
};

use crate::memory::{Net, status};

const URL: &str = "https://a.example/x";

fn to(code: u16, location: &str) -> crate::memory::Reply {
    status(code).header("location", location)
}

fn builder(net: &Net) -> ClientBuilder {
    let backoff = Backoff::full_jitter(Duration::from_millis(50), Duration::from_millis(400));
    net.client().policy(Policy::default().backoff(backoff).no_budget())
}

fn client(net: &Net) -> Client {
    builder(net).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_same_origin_keeps_key_method_and_body() {
    let net = Net::new([to(307, "/y"), status(503), status(200)]);
    let response = client(&net).post(URL).idempotency_key("k").body("b").send().await.unwrap();
    // The hop is no attempt of its own.
    assert_eq!(response.history().attempts().len(), 2);
    let y = "POST https://a.example/y";
    assert_eq!(net.lines(), ["POST https://a.example/x", y, y]);
    assert_eq!(net.header("idempotency-key"), vec![Some("k".to_owned()); 3]);
    assert_eq!(net.bodies(), ["b"; 3]);
}

#[tokio::test(start_paused = true)]
async fn another_origin_gets_no_secret() {
    let net = Net::new([to(308, "https://b.example/y"), to(307, "https://a.example/z"), status(503)]);
    let mut hidden = HeaderValue::from_static("h");
    hidden.set_sensitive(true);
    let defaults = [("x-default", "d"), ("accept-language", "en"), ("authorization", "d")];
    let defaults = defaults.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let response = builder(&net)
        .default_headers(HeaderMap::from_iter(defaults))
        .user_agent("ua")
        .sensitive_headers([HeaderName::from_static("x-own")])
        .headers_with(|_| async { Ok(HeaderMap::from_iter([("x-fresh".parse()?, HeaderValue::from_static("f"))])) })
        .build()
        .unwrap()
        .post(URL)
        .idempotency_key("k")
        .header("cookie", "c")
        .header("x-own", "o")
        .header("x-marked", hidden)
        .header("x-plain", "p")
        .header("host", "a.example")
        .body("b")
        .send()
        .await
        .unwrap();
    // Unkeyed from then on, so the failure is final.
    assert_eq!((response.history().stop(), net.count()), (Stop::NotIdempotent, 3));
    let secrets = ["idempotency-key", "cookie", "x-own", "x-marked", "x-default", "authorization", "x-fresh", "host"];
    for name in secrets {
        let seen = net.header(name);
        assert!(seen[0].is_some() && seen[1].is_none() && seen[2].is_none(), "{name}: {seen:?}");
    }
    for name in ["x-plain", "user-agent", "accept-language"] {
        assert!(net.header(name).iter().all(Option::is_some), "{name}");
    }
    assert_eq!(net.bodies(), ["b"; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_redirect_that_is_not_taken_is_an_answer() {
    let check = async |location: &str, redirects| {
        let net = Net::new([to(302, location).body("moved"), status(200)]);
        let response = builder(&net).redirects(redirects).build().unwrap().get(URL).send().await.unwrap();
        assert_eq!((response.status().as_u16(), net.count()), (302, 1), "{location}");
        assert_eq!(response.history().stop(), Stop::RedirectRefused);
        assert_eq!(response.text().await.unwrap(), "moved");
    };
    check("http://a.example/y", 10).await;
    check("https://user:pass@a.example/y", 10).await;
    check("/x", 10).await;
    check("/y", 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_and_the_limit_end_at_the_last_redirect() {
    let net = Net::new([to(302, "/y"), to(302, "/x")]);
    let response = client(&net).get(URL).send().await.unwrap();
    assert_eq!((response.history().stop(), net.count()), (Stop::RedirectRefused, 2));

    let net = Net::new((0..20).map(|hop| to(302, &format!("/{hop}"))));
    let response = client(&net).get(URL).send().await.unwrap();
    assert_eq!((response.history().stop(), net.count()), (Stop::RedirectRefused, 11));
}

#[tokio::test(start_paused = true)]
async fn a_used_up_stream_does_not_follow() {
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter([Ok::<_, std::io::Error>("b")]));
    let net = Net::new([to(307, "/y")]);
    let response = client(&net).put(URL).body(body).send().await.unwrap();
    assert_eq!((response.history().stop(), net.count()), (Stop::RedirectRefused, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hop_that_cannot_be_sent_leaves_the_redirect_and_its_attempt() {
    let net = Net::new([to(302, "/y").body("moved")]);
    let asked = std::sync::atomic::AtomicBool::new(false);
    let once = move |_| {
        let again = asked.swap(true, std::sync::atomic::Ordering::Relaxed);
        async move { if again { Err("no token".into()) } else { Ok(HeaderMap::new()) } }
    };
    let response = builder(&net).headers_with(once).build().unwrap().get(URL).send().await.unwrap();
    assert_eq!((response.history().stop(), net.count()), (Stop::NotSent, 1));
    assert_eq!(response.history().attempts()[0].status().unwrap(), 302);
    assert_eq!(response.text().await.unwrap(), "moved");
}

#[tokio::test(start_paused = true)]
async fn a_wait_on_a_redirect_is_a_floor() {
    let net = Net::new([to(301, "/y").header("retry-after", "1"), status(200)]);
    let response = client(&net).get(URL).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let gap = net.gaps()[0];
    assert!(gap >= Duration::from_secs(1) && gap <= Duration::from_millis(1051), "{gap:?}");

    let net = Net::new([to(301, "/y").header("retry-after", "300")]);
    let response = client(&net).get(URL).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.history().stop()), (301, Stop::Deadline));
}

#[tokio::test(start_paused = true)]
async fn a_202_is_polled_by_name_only() {
    let replies = || {
        let first = status(202).header("retry-after", "1").header("location", "/op/1");
        [first, status(202).header("retry-after", "1"), status(200).body("done")]
    };
    let net = Net::new(replies());
    let response = client(&net).put(URL).body("b").send().await.unwrap();
    assert_eq!((response.status().as_u16(), net.count()), (202, 1));

    let net = Net::new(replies());
    let client = net.client().policy(Policy::default().poll_202(true).max_attempts(1)).build().unwrap();
    let response = client.put(URL).body("b").send().await.unwrap();
    assert_eq!(response.history().attempts().len(), 1);
    let op = "GET https://a.example/op/1";
    assert_eq!(net.lines(), ["PUT https://a.example/x", op, op]);
    assert_eq!(response.text().await.unwrap(), "done");
}

/// Not in the request's target, where reqwest's own `execute` leaves it for a proxy to see.
#[tokio::test(start_paused = true)]
async fn a_user_name_is_sent_as_credentials_and_stays_at_home() {
    let net = Net::new([to(302, "/y"), to(302, "https://b.example/z"), status(200), status(200)]);
    let client = client(&net);
    let request = || reqwest::Request::new(http::Method::GET, "https://me:a%40b@a.example/x".parse().unwrap());
    client.execute(request()).await.unwrap();
    let mut own = request();
    own.headers_mut().insert("authorization", HeaderValue::from_static("own"));
    client.execute(own).await.unwrap();
    let basic = Some("Basic bWU6YUBi".to_owned());
    assert_eq!(net.header("authorization"), [basic.clone(), basic, None, Some("own".to_owned())]);
    let lines = ["/x", "/y"].map(|path| format!("GET https://a.example{path}"));
    assert_eq!(net.lines(), [&lines[0], &lines[1], "GET https://b.example/z", &lines[0]]);
}
