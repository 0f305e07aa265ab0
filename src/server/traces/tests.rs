//! Tests of `server/traces.rs`.

use super::*;

#[test]
fn only_a_whole_traceparent_is_read() {
    let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let parent = TraceParent::parse(good).expect("it is whole");
    assert_eq!(
        (parent.trace[0], parent.span[7], parent.sampled),
        (0x0a, 0x31, true)
    );
    assert!(TraceParent::parse(&good.replace("-01", "-00")).is_some_and(|parent| !parent.sampled));
    assert!(TraceParent::parse(&good.replacen("00", "01", 1).replace("-01", "-01-more")).is_some());
    for wrong in [
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        "00-ä-b-01",
    ] {
        assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
    }
}
