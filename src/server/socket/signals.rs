//! The signals that end a server: Ctrl-C, SIGTERM and SIGHUP.

/// Completes at the first Ctrl-C, SIGTERM or SIGHUP. After that, Ctrl-C or SIGTERM ends the process at once. Another
/// SIGHUP does not: a terminal that is closed often sends two.
pub async fn shutdown_signal() {
    tokio::select! {
        () = interrupt_or_terminate() => {}
        () = hang_up() => {}
    }
    tokio::spawn(async {
        interrupt_or_terminate().await;
        std::process::exit(130);
    });
}

/// If no handler can be set, the signal keeps its default action, which ends the process.
async fn interrupt_or_terminate() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = interrupt => {}
        () = terminate() => {}
    }
}

#[cfg(unix)]
async fn terminate() {
    wait_for(tokio::signal::unix::SignalKind::terminate()).await;
}

/// A terminal that is closed sends SIGHUP to its programs. A program started with `nohup` ignores it, and must go on.
#[cfg(unix)]
async fn hang_up() {
    if crate::platform::ignores_hang_up() {
        std::future::pending::<()>().await;
    }
    wait_for(tokio::signal::unix::SignalKind::hangup()).await;
}

#[cfg(unix)]
async fn wait_for(kind: tokio::signal::unix::SignalKind) {
    match tokio::signal::unix::signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn terminate() {
    std::future::pending().await
}

#[cfg(not(unix))]
async fn hang_up() {
    std::future::pending().await
}
