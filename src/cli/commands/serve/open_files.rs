//! The process's limit of open files, which also limits the connections of a server.

use crate::cli::terminal::output::note;

/// Files that are left for everything except connections: model files, devices, responses to clients without a place.
const OTHERS: usize = 256;

/// The number of connections that the process can hold, at most `wanted`. Raises the limit of open files if necessary,
/// and says so if that is not enough: a server that runs out of files accepts no connection at all.
pub(super) fn connections(wanted: usize) -> usize {
    let Some(files) = open_files(wanted + OTHERS) else {
        return wanted;
    };
    // Of a very low limit, connections get half.
    let possible = files.saturating_sub(OTHERS).max(files / 2).max(1);
    if possible < wanted {
        note(format_args!(
            "warning: at most {possible} connections instead of {wanted}: this process may open only {files} files \
             (ulimit -n)"
        ));
    }
    possible.min(wanted)
}

/// The limit of open files, after it was raised towards `wanted`; `None` if there is none.
#[cfg(unix)]
fn open_files(wanted: usize) -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let limit = current?;
    let raised = maximum.map_or(wanted as u64, |maximum| maximum.min(wanted as u64));
    let is_raised = raised > limit
        && setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(raised),
                maximum,
            },
        )
        .is_ok();
    usize::try_from(if is_raised { raised } else { limit }).ok()
}

#[cfg(not(unix))]
fn open_files(_: usize) -> Option<usize> {
    None
}
