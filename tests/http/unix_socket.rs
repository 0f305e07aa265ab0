//! A Unix socket: who may connect, what happens to one that is left over, and that a server removes its own.

use crate::harness::{Server, hello, with};
use crate::sockets::{read_until, request};
use folio::server::socket::{Listener, SocketOptions, serve};
use serde_json::json;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

#[test]
fn a_unix_socket_serves_and_goes_with_its_server() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = folder.path().join("folio.sock");
    drop(UnixListener::bind(&path).expect("a socket that is left over"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let bind =
        |name: &str| runtime.block_on(async { Listener::bind_unix(&folder.path().join(name)) });
    let listener = bind("folio.sock").expect("what is left over is replaced");
    assert_eq!(
        fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777,
        0o660
    );
    fs::write(folder.path().join("file"), "text").expect("the folder takes files");
    for (name, kind) in [
        ("folio.sock", ErrorKind::AddrInUse),
        ("file", ErrorKind::AlreadyExists),
        ("no/socket", ErrorKind::NotFound),
    ] {
        assert_eq!(
            bind(name).err().map(|error| error.kind()),
            Some(kind),
            "{name}"
        );
    }
    assert_eq!(
        listener.address().expect("it has one").to_string(),
        format!("unix:{}", path.display())
    );

    let server = Server::plain();
    let (stop, stopped) = oneshot::channel::<()>();
    let state = server.state.clone();
    let thread = std::thread::spawn(move || {
        runtime.block_on(serve(listener, state, SocketOptions::default(), async {
            drop(stopped.await);
        }));
    });
    let mut stream = UnixStream::connect(&path).expect("it listens");
    for _ in 0..2 {
        stream
            .write_all(request(&hello().to_string()).as_bytes())
            .expect("it reads");
        assert!(read_until(&mut stream, "\"usage\"").starts_with("HTTP/1.1 200 "));
    }
    // Two requests at once: the second has arrived while the first is answered, and none of its bytes is lost.
    let both = request(&with(&hello(), &json!({"stream": true})).to_string())
        + &request(&hello().to_string());
    stream.write_all(both.as_bytes()).expect("it reads");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let text = read_until(&mut stream, "\"usage\"");
    assert!(
        text.contains("[DONE]") && text.matches("HTTP/1.1 200 ").count() == 2,
        "{text}"
    );
    drop(stop);
    thread.join().expect("it ends well");
    assert!(!path.exists(), "the server removes its socket");
}

#[test]
fn a_server_leaves_the_socket_of_another_that_has_its_path() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = folder.path().join("folio.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let listener = runtime
        .block_on(async { Listener::bind_unix(&path) })
        .expect("the folder takes sockets");
    fs::remove_file(&path).expect("it is there");
    let other = UnixListener::bind(&path).expect("the path is free");
    runtime.block_on(async { drop(listener) });
    assert!(
        path.exists() && UnixStream::connect(&path).is_ok(),
        "the other one goes on"
    );
    drop(other);
}
