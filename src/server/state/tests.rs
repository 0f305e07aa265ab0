//! Tests of `server/state/mod.rs`.

use super::*;

#[test]
fn only_what_this_server_has_sealed_is_opened() {
    let (seal, other) = (Seal::new(), Seal::new());
    let sealed = seal.seal("a thought");
    assert_eq!(seal.open(&sealed).as_deref(), Some("a thought"));
    assert_eq!(other.open(&sealed), None, "another server's");
    let bytes = URL_SAFE_NO_PAD.decode(&sealed).expect("it is base64");
    for at in 0..bytes.len() {
        let mut forged = bytes.clone();
        forged[at] ^= 1;
        assert_eq!(
            seal.open(&URL_SAFE_NO_PAD.encode(forged)),
            None,
            "byte {at}"
        );
    }
    let unsigned = [&[0; 32], &b"a thought"[..]].concat();
    for forged in [
        URL_SAFE_NO_PAD.encode(unsigned),
        URL_SAFE_NO_PAD.encode("a thought"),
        String::new(),
        "?".into(),
    ] {
        assert_eq!(seal.open(&forged), None, "{forged}");
    }
}
