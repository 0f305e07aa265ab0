//! Tests of `cli/hub/name.rs`.

use super::*;

#[test]
fn names_have_three_parts_at_most() {
    let check = |text: &str, revision: &str, requested: Option<&str>| {
        let name: HubName = text.parse().expect("a name");
        assert_eq!(
            (name.repo.as_str(), name.revision()),
            ("Qwen/Qwen3-0.6B", revision),
            "{text}"
        );
        assert_eq!(name.requested.as_deref(), requested, "{text}");
        assert_eq!(name.to_string(), text);
    };
    check("Qwen/Qwen3-0.6B", "main", None);
    check("Qwen/Qwen3-0.6B@refs/pr/1", "refs/pr/1", None);
    check("Qwen/Qwen3-0.6B:Q4_K_M", "main", Some("Q4_K_M"));
    check(
        "Qwen/Qwen3-0.6B@v1:sub/a-00001-of-00002.gguf",
        "v1",
        Some("sub/a-00001-of-00002.gguf"),
    );
}

#[test]
fn names_that_could_point_elsewhere_are_refused() {
    for text in [
        "",
        "gpt2",
        "a/b/c",
        "./a",
        "../a",
        "a/..",
        "/a/b",
        "a//b",
        "a/",
        "a/b c",
        "a/b@",
        "a/b@../c",
        "a/b@/c",
        "a/b@c..d",
        "a/b:",
        "a/b:../c.gguf",
        "a/b:/c.gguf",
        "a/b:c\\d.gguf",
        "a--b/c",
        "a/b.",
        "C:\\a\\b",
        "https://a/b",
        "a/b@x?y",
    ] {
        assert!(text.parse::<HubName>().is_err(), "{text:?} is refused");
    }
    assert!(
        is_hostile("../evil")
            && is_hostile("/etc/passwd")
            && is_hostile("a/../../b")
            && is_hostile("a\\..\\b")
    );
    assert!(
        !is_hostile("runs/12:30/a..b") && !is_plain("runs/12:30/a") && is_plain("onnx/model.onnx")
    );
    assert!(is_commit(&"0a".repeat(20)) && !is_commit("main") && !is_commit(&"0A".repeat(20)));
}
