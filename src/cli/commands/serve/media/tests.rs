//! Tests of `serve/media.rs`.

use super::*;

#[test]
fn limits_are_read_in_both_forms() {
    for text in [
        "image=4",
        "image=4,video=0",
        "{\"image\": 4}",
        " {\"image\": 4, \"audio\": 2}",
    ] {
        assert_eq!(text.parse(), Ok(MediaLimits { images: 4 }), "{text}");
    }
    for (text, reason) in [
        ("4", "expected image=N"),
        ("video=1", "expected image=N"),
        ("image=-1", "image: expected a number, not -1"),
        ("image=1,smell=1", "smell is none of"),
        ("{\"image\": {\"count\": 1}}", "image: expected a number"),
        ("{\"image\": 1", "expected a JSON object"),
    ] {
        let refused = text.parse::<MediaLimits>().expect_err(text);
        assert!(refused.contains(reason), "{text}: {refused}");
    }
}
