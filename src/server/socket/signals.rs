//! The signals that end a server: Ctrl-C, SIGTERM and SIGHUP.

/// Installs handlers, and completes at the first Ctrl-C, SIGTERM or SIGHUP. After that, Ctrl-C or SIGTERM ends the
/// process at once. Another SIGHUP does not: a terminal that is closed often sends two.
///
/// The handlers are installed by the call, which needs a runtime, not by the first poll: whoever learns that a server
/// is ready may send a signal at once.
pub fn shutdown_signal() -> impl Future<Output = ()> {
    let (ends, hangs_up) = (interrupt_or_terminate(), hang_up());
    async {
        tokio::select! {
            () = ends => {}
            () = hangs_up => {}
        }
        let again = interrupt_or_terminate();
        tokio::spawn(async {
            again.await;
            std::process::exit(130);
        });
    }
}

#[cfg(unix)]
fn interrupt_or_terminate() -> impl Future<Output = ()> {
    use tokio::signal::unix::SignalKind;
    let (interrupt, terminate) = (
        wait_for(SignalKind::interrupt()),
        wait_for(SignalKind::terminate()),
    );
    async {
        tokio::select! {
            () = interrupt => {}
            () = terminate => {}
        }
    }
}

/// A terminal that is closed sends SIGHUP to its programs. A program started with `nohup` ignores it, and must go on.
#[cfg(unix)]
fn hang_up() -> impl Future<Output = ()> {
    let signals = (!crate::platform::ignores_hang_up())
        .then(|| wait_for(tokio::signal::unix::SignalKind::hangup()));
    async {
        match signals {
            Some(signals) => signals.await,
            None => std::future::pending().await,
        }
    }
}

/// If no handler can be set, the signal keeps its default action, which ends the process.
#[cfg(unix)]
fn wait_for(kind: tokio::signal::unix::SignalKind) -> impl Future<Output = ()> {
    let signals = tokio::signal::unix::signal(kind);
    async {
        match signals {
            Ok(mut signals) => {
                signals.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(windows)]
fn interrupt_or_terminate() -> impl Future<Output = ()> {
    let signals = tokio::signal::windows::ctrl_c();
    async {
        match signals {
            Ok(mut signals) => {
                signals.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(windows)]
async fn hang_up() {
    std::future::pending().await
}
