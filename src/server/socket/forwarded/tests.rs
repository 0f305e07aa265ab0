//! Tests of `server/socket/forwarded.rs`.

use super::*;
use axum::http::HeaderValue;

fn client(proxies: &str, peer: &str, headers: &[&str]) -> Option<String> {
    let proxies: Proxies = proxies.parse().expect("a list");
    let mut map = HeaderMap::new();
    for header in headers {
        map.append(
            FORWARDED_FOR,
            HeaderValue::from_str(header).expect("a header"),
        );
    }
    proxies
        .client(peer.parse().expect("an address"), &map)
        .map(|address| address.to_string())
}

#[test]
fn only_a_trusted_proxy_tells_the_address_and_the_last_untrusted_one_counts() {
    let trusted = "127.0.0.1, 10.0.0.0/8";
    let of = |peer: &str, headers: &[&str]| client(trusted, peer, headers);
    assert_eq!(
        of("203.0.113.9", &["198.51.100.1"]).as_deref(),
        Some("203.0.113.9"),
        "anyone may write it"
    );
    assert_eq!(
        of("127.0.0.1", &["198.51.100.1"]).as_deref(),
        Some("198.51.100.1")
    );
    assert_eq!(
        of("10.1.2.3", &["1.1.1.1, 198.51.100.1, 10.9.9.9"]).as_deref(),
        Some("198.51.100.1")
    );
    assert_eq!(
        of("10.1.2.3", &["1.1.1.1", "198.51.100.1:4711"]).as_deref(),
        Some("198.51.100.1")
    );
    assert_eq!(
        of("10.1.2.3", &["[2001:db8::1]:80"]).as_deref(),
        Some("2001:db8::1")
    );
    assert_eq!(
        of("::ffff:10.1.2.3", &["::ffff:198.51.100.1"]).as_deref(),
        Some("198.51.100.1")
    );
    assert_eq!(
        of("10.1.2.3", &["198.51.100.1, unknown"]).as_deref(),
        Some("10.1.2.3")
    );
}

#[test]
fn a_proxy_without_an_address_and_this_machine_are_nobody() {
    assert_eq!(client("10.0.0.0/8", "10.1.2.3", &[]), None);
    assert_eq!(client("10.0.0.0/8", "10.1.2.3", &["10.0.0.1"]), None);
    assert_eq!(client("", "127.0.0.1", &["198.51.100.1"]), None);
    assert_eq!(client("", "::1", &[]), None);
    assert_eq!(
        client("*", "203.0.113.9", &["1.1.1.1, 198.51.100.1"]).as_deref(),
        Some("198.51.100.1")
    );
    assert_eq!(client("*", "203.0.113.9", &[]), None);
}

#[test]
fn a_list_has_addresses_and_networks_only() {
    for wrong in [
        "proxy",
        "10.0.0.0/33",
        "::/129",
        "10.0.0.0/",
        "10.0.0",
        "10.0.0.0/8/8",
    ] {
        assert!(wrong.parse::<Proxies>().is_err(), "{wrong}");
    }
    assert!("::1, 0.0.0.0/0,".parse::<Proxies>().is_ok());
}
