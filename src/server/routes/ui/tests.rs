//! Tests of `server/routes/ui.rs`.

use super::*;

#[test]
fn gzip_is_sent_to_those_who_read_it() {
    for (accepted, expected) in [
        (&["gzip"][..], true),
        (&["br, GZIP;q=0.5"], true),
        (&["deflate", "gzip"], true),
        (&["*"], true),
        (&["*;q=0, gzip"], true),
        (&["gzip;q=0, *"], false),
        (&["gzip; q=0.000"], false),
        (&["gzip;q=x"], false),
        (&["br, deflate, xgzip"], false),
        (&["identity"], false),
        (&[], false),
    ] {
        let mut headers = HeaderMap::new();
        for line in accepted {
            headers.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
        }
        assert_eq!(accepts_gzip(&headers), expected, "{accepted:?}");
    }
}
