//! Tests of `cli/commands/serve/access.rs`.

use super::*;

#[test]
fn keys_are_lines_and_anything_doubtful_is_an_error() {
    assert_eq!(
        keys_of("one\n\r\n  two \r\n").expect("two keys"),
        ["one", "two"]
    );
    for (text, words) in [
        ("", "no key"),
        ("\n \n", "no key"),
        ("ok\na,b", "line 2"),
        ("a b", "spaces"),
        ("ключ", "ASCII"),
    ] {
        let error = format!("{:#}", keys_of(text).expect_err(text));
        assert!(error.contains(words), "{text:?}: {error}");
        assert!(
            !error.contains("a,b"),
            "the key itself is not printed: {error}"
        );
    }
    assert!(check_key("").is_err());
}

#[test]
fn hosts_and_origins_are_as_browsers_send_them() {
    for good in [
        "localhost",
        "gpu.example.org",
        "10.0.0.1",
        "::1",
        "[::1]",
        "*",
    ] {
        assert_eq!(host(good).expect(good), good);
    }
    for wrong in ["", " ", "http://gpu", "gpu:80", "*.example.org", "a/b"] {
        assert!(host(wrong).is_err(), "{wrong}");
    }
    assert!(
        place("unix:folio.sock").is_ok() == cfg!(unix)
            && place("unix:").is_err()
            && place("a/b").is_err()
    );
    assert!(host_pattern("*.example.org").is_ok() && host_pattern("http://*").is_err());
    assert!(own_names("gpu").contains(&"gpu.local".to_owned()) && own_names("a b").is_empty());
    for (given, sent) in [
        ("https://a.org", "https://a.org"),
        ("http://a.org:80/", "http://a.org:80"),
        ("*", "*"),
        ("app://", "app://*"),
        ("http://localhost:*", "http://localhost:*"),
    ] {
        assert_eq!(origin(given).expect(given), sent);
    }
    for wrong in [
        "",
        "/",
        "a.org",
        "https://",
        "://a.org",
        "https://a.org/page",
        "*://a.org",
        "null",
    ] {
        assert!(origin(wrong).is_err(), "{wrong}");
    }
}
