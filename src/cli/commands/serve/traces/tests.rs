//! Traces, as a collector gets them.

use super::*;
use std::sync::mpsc::channel;

fn trace() -> RequestTrace {
    RequestTrace {
        operation: "chat",
        model: "demo".into(),
        parent: None,
        started: UNIX_EPOCH,
        duration: Duration::ZERO,
        queued: None,
        first_token: None,
        choices: 1,
        max_tokens: None,
        temperature: 1.0,
        top_p: 1.0,
        prompt_tokens: 1,
        cached_tokens: 0,
        completion_tokens: 1,
        finish_reasons: vec!["stop"],
        error: None,
    }
}

#[test]
fn a_request_does_not_wait_until_there_is_room_for_traces() {
    let (sender, waiting) = sync_channel(1);
    let (_open, ended) = sync_channel(0);
    let sink = Traces { sender, ended }.sink();
    let (done, finished) = channel();
    std::thread::spawn(move || {
        (0..3).for_each(|_| (sink.0)(trace()));
        done.send(())
    });
    let in_time = finished.recv_timeout(Duration::from_secs(10));
    assert_eq!(in_time, Ok(()), "nobody takes traces");
    assert_eq!(waiting.try_iter().count(), 1, "further ones are lost");
}

#[test]
fn no_credentials_of_an_address_are_logged() {
    for (address, logged) in [
        (
            "http://user:secret@host:4318/v1/traces?key=secret#secret",
            "http://host:4318/v1/traces",
        ),
        ("https://se%40cret@host", "https://host"),
        ("http://a:b@c@[::1]:80/x@y", "http://[::1]:80/x@y"),
    ] {
        assert_eq!(without_credentials(address), logged);
    }
}

#[test]
fn headers_are_read_as_opentelemetry_writes_them() {
    let read = headers("api-key=a%20b%3D%2C, X-Tenant = one=two ,empty=").expect("they are right");
    let of = |name: &str| read.get(name).map(|value| value.to_str().expect("text"));
    assert_eq!(of("api-key"), Some("a b=,"));
    assert_eq!(of("x-tenant"), Some("one=two"));
    assert_eq!((of("empty"), read.len()), (Some(""), 3));
    for (wrong, word) in [
        ("secret", "entry 1 has no `=`"),
        ("a=b,", "entry 2 has no `=`"),
        ("a=b,x y=secret", "entry 2: \"x y\" is not the name"),
        ("=secret", "entry 1: \"\" is not the name"),
        (
            "a=secret%0Ahost: x",
            "entry 1: a header cannot have the value of a",
        ),
        (
            "a=secret%FF",
            "entry 1: a header cannot have the value of a",
        ),
    ] {
        let error = format!("{:#}", headers(wrong).expect_err(wrong));
        assert!(
            error.contains(word) && !error.contains("secret"),
            "{wrong}: {error}"
        );
    }
}
