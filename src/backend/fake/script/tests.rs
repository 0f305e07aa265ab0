//! Tests of `backend/fake/script.rs`.

use super::*;

#[test]
fn a_script_is_words() {
    let script: Script = "lost@3,lost@9,invalid@2,nan=17,oom=100,pause=5,rounding=1"
        .parse()
        .expect("the case is valid");
    assert_eq!(script.lost, BTreeSet::from([3, 9]));
    assert_eq!(
        (script.nan, script.oom, script.pause),
        (Some(17), Some(100), Duration::from_millis(5))
    );
    assert!(script.rounding);
    let say: Script = "say=1.2>3.4>5".parse().expect("the case is valid");
    let say = say.say.expect("the script has an answer");
    let next = |tokens: &[u32]| say.next(tokens);
    assert_eq!(
        (next(&[9, 1, 2]), next(&[1, 2, 3]), next(&[1, 2, 3, 4])),
        (Some(3), Some(4), None)
    );
    assert_eq!(
        (next(&[1, 2, 3, 4, 1, 2]), next(&[7])),
        (Some(5), None),
        "the second answer"
    );
    assert_eq!(
        "".parse::<Script>().expect("the case is valid"),
        Script::default()
    );
    for wrong in [
        "lost",
        "lost=3",
        "lost@x",
        "nan@3",
        "lose@3",
        "nan=4294967296",
        "say=",
        "say=x",
        "say@1",
    ] {
        assert!(wrong.parse::<Script>().is_err(), "{wrong} is refused");
    }
}
