//! Tests of `server/guards/body.rs`.

use super::*;
use crate::platform::block_on;
use axum::body::Bytes;
use futures_util::stream;
use std::convert::Infallible;

/// A buffer, of which a frame shows one byte.
struct Buffer {
    _alive: Arc<()>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        b"x"
    }
}

#[test]
fn no_frame_is_kept_until_the_body_ends() {
    let alive = Arc::new(());
    let frame = move |_| {
        let frames = Arc::strong_count(&alive) - 1;
        assert!(frames <= 1, "{frames} frames are alive");
        Ok::<_, Infallible>(Bytes::from_owner(Buffer {
            _alive: alive.clone(),
        }))
    };
    let body = Body::from_stream(stream::iter((0..1000).map(frame)));
    assert_eq!(block_on(read_body(body, 1000)), Ok(vec![b'x'; 1000]));
}
