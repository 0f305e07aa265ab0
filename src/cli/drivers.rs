//! Drivers of Vulkan are tried in a process of their own first, so that one that crashes takes only that with it.
//!
//! On Windows, AMD's driver crashes for RDNA 3.5 when it lists its cooperative matrices (llama.cpp #22750), which wgpu
//! asks of every adapter. The same is not known of other systems, where starting a process for it would only cost time.

use folio::backend::wgpu::exclude_vulkan;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

/// Set to 1, Vulkan is not used.
const WITHOUT_VULKAN: &str = "FOLIO_WITHOUT_VULKAN";
/// Listing takes a second at most, on a machine that is busy longer.
const TIME_MAX: Duration = Duration::from_secs(30);
/// How often the process is looked at.
const PAUSE: Duration = Duration::from_millis(10);

/// Lists the adapters in another process, once, where that may crash; if it does, Vulkan is not used in this one.
pub(crate) fn try_vulkan() {
    static TRIED: Once = Once::new();
    TRIED.call_once(|| {
        if std::env::var_os(WITHOUT_VULKAN).is_some_and(|value| value == "1") {
            exclude_vulkan();
        } else if cfg!(windows)
            && let Ok(program) = std::env::current_exe()
            && let Err(what) = succeeds(&program, &["devices", "--try"], TIME_MAX)
        {
            tracing::warn!(
                "a driver of Vulkan failed while it listed its devices ({what}), so Vulkan is not used; a newer driver \
                 may not, and {WITHOUT_VULKAN}=1 saves trying it"
            );
            exclude_vulkan();
        }
    });
}

/// Runs a program without input and output; the error says how it ended, or that it did not.
fn succeeds(program: &Path, arguments: &[&str], time_max: Duration) -> Result<(), String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if begin.elapsed() < time_max => std::thread::sleep(PAUSE),
            outcome => {
                // It is gone in any case that this fails in.
                let _ = child.kill().and_then(|()| child.wait());
                return Err(match outcome {
                    Err(error) => error.to_string(),
                    Ok(_) => format!("no answer after {} s", time_max.as_secs()),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
