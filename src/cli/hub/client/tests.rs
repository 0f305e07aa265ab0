//! Tests of `cli/hub/client.rs`.

use super::*;

#[test]
fn an_origin_is_scheme_host_and_port() {
    assert!(same_origin(
        "https://Hub.example/a",
        "https://hub.example:443/b"
    ));
    assert!(!same_origin("https://hub.example", "http://hub.example"));
    assert!(!same_origin(
        "https://hub.example",
        "https://hub.example.evil.example"
    ));
    assert!(!same_origin("http://127.0.0.1:1", "http://127.0.0.1:2"));
    assert!(!same_origin(
        "https://hub.example@evil.example/",
        "https://hub.example/"
    ));
    assert!(!same_origin("no address", "no address"));
}

#[test]
fn redirects_lead_to_addresses_and_never_out_of_tls() {
    let from = "https://hub.example/a/b";
    assert_eq!(
        next_url(from, "/c?d").as_deref(),
        Some("https://hub.example/c?d")
    );
    assert_eq!(
        next_url(from, "//cdn.example/c").as_deref(),
        Some("https://cdn.example/c")
    );
    assert_eq!(
        next_url(from, "https://cdn.example/c").as_deref(),
        Some("https://cdn.example/c")
    );
    assert_eq!(next_url(from, "http://cdn.example/c"), None);
    assert_eq!(next_url(from, "file:///etc/passwd"), None);
    assert_eq!(next_url(from, "c"), None);
    assert_eq!(next_url(from, ""), None);
    assert_eq!(
        next_url("http://hub.example/a", "http://b/c").as_deref(),
        Some("http://b/c")
    );
}

#[test]
fn paths_are_encoded() {
    assert_eq!(encoded("a b/ü#?%.json", "/"), "a%20b/%C3%BC%23%3F%25.json");
    assert_eq!(encoded("refs/pr/1", ""), "refs%2Fpr%2F1");
    assert_eq!(shortened("a\u{1b}[31m\nb"), "a[31mb");
}
