//! What was decided about signals before this process started.

/// Whether this process ignores SIGHUP, as one started with `nohup` does.
#[allow(
    unsafe_code,
    reason = "the standard library does not tell the action of a signal"
)]
pub fn ignores_hang_up() -> bool {
    // SAFETY: the call changes nothing and writes the action to a value for which zeros are valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}
