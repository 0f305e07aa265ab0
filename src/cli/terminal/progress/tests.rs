//! Tests of `cli/terminal/progress.rs`.

use super::*;

/// What is said of work that takes until three lines are said, or no time at all.
fn said(first: Duration) -> Vec<String> {
    let (say, heard) = std::sync::mpsc::channel();
    let say = move |line| say.send(line).expect("it is heard");
    let done = Mutex::new(0);
    let amount = move || {
        let mut done = done.lock().expect("nothing panics");
        *done += 1;
        (*done > 1).then(|| (*done, 4))
    };
    let times = (first, Duration::from_millis(1));
    let lines = Lines::said("checking kernels".into(), Unit::Pieces, amount, times, say);
    let mut all: Vec<String> = if first.is_zero() {
        heard.iter().take(3).collect()
    } else {
        Vec::new()
    };
    drop(lines);
    all.extend(heard.iter());
    all
}

#[test]
fn without_a_terminal_long_work_says_lines_and_its_time() {
    let all = said(Duration::ZERO);
    assert_eq!(all[0], "checking kernels …");
    assert!(
        all[1].starts_with("checking kernels: 2 of 4, ") && all[1].ends_with(" left"),
        "{all:?}"
    );
    assert!(
        all.last()
            .is_some_and(|last| last.starts_with("checking kernels: 0.") && last.ends_with(" s"))
    );
    assert_eq!(
        said(Duration::from_secs(60)),
        [] as [String; 0],
        "short work is not worth a line"
    );
}

#[test]
fn a_line_tells_phase_amount_and_time() {
    let said = |amount| line("loading", Unit::Bytes, amount, Duration::from_secs(2));
    assert_eq!(said(None), "loading …");
    assert_eq!(
        said(Some((1 << 20, 4 << 20))),
        "loading: 1.00 MiB of 4.00 MiB, 6 seconds left"
    );
    assert_eq!(
        line("checking", Unit::Pieces, Some((0, 9)), Duration::ZERO),
        "checking: 0 of 9"
    );
}
