//! Tests of `text/grammar/gbnf.rs`.

use super::*;
use llguidance::toktrie::TokRxInfo;

/// Six tokens, of which the last is special.
fn tokens() -> TokTrie {
    let mut words: Vec<Vec<u8>> = ["a", "b", "c", "d", "e"].map(Into::into).to_vec();
    words.push([&[TokTrie::SPECIAL_TOKEN_MARKER], "</think>".as_bytes()].concat());
    TokTrie::from(&TokRxInfo::new(6, 5), &words)
}

fn to_lark(text: &str) -> Result<String, String> {
    super::to_lark(text, &tokens())
}

#[test]
fn tokens_are_named_by_number_or_text() {
    let lark = to_lark("root ::= \"a\" <[3]> thought </think>\nthought ::= !</think>* !<[2]>");
    let expected = "start: r0\n\
            r0: (X0 <[3]> r1 <[5]>)\n\
            r1: ((<[^5]>)* <[^2]>)\n\
            X0: /a/\n";
    assert_eq!(lark.as_deref(), Ok(expected));
    for wrong in ["<[6]>", "<[x]>", "<b>", "<[5", "!\"a\"", "!"] {
        let error = to_lark(&format!("root ::= {wrong}")).expect_err(wrong);
        assert!(error.contains("expected a token"), "{wrong}: {error}");
    }
}

#[test]
fn the_last_rule_of_a_name_counts() {
    let (twice, once) = ("root ::= \"a\"\nroot ::= \"b\"", "root ::= \"b\"");
    assert_eq!(to_lark(twice), to_lark(once));
}

#[test]
fn what_does_not_recur_is_one_pattern() {
    let text = "# a comment\nroot ::= list | word\nlist ::= \"[\" (root (\",\" root)*)? \
            \"]\"\nword ::=\n  [a-z]+ | \"/\"";
    let lark = to_lark(text).expect("it is right");
    let expected = "start: r1\n\
            r0: (X0 ((r1 ((X1 r1))*))? X2)\n\
            r1: (r0 | X3)\n\
            T2: ((/[a-z]/)+ | /\\x{2f}/)\n\
            X0: /\\x{5b}/\n\
            X1: /\\x{2c}/\n\
            X2: /\\x{5d}/\n\
            X3: T2\n";
    assert_eq!(lark, expected);
    assert!(is_gbnf(text) && !is_gbnf("start: \"::=\"") && !is_gbnf("start: /a/"));
}

#[test]
fn mistakes_are_named() {
    for (text, words) in [
        ("a ::= \"x\"", "no rule `root`"),
        ("root ::= a", "`a` is not defined"),
        ("root ::= \"a", "does not end"),
        ("root ::= [", "does not end"),
        ("root ::= []", "empty"),
        ("root ::= [z-a]", "wrong way"),
        ("root ::= (\"a\"", "expected `)`"),
        ("root ::= \"a\"{3,1}", "repetition"),
        ("root ::= \"a\"{99999999}", "repetition"),
        ("root ::= \"\\q\"", "not known"),
        ("root ::= \"\\uD800\"", "no character"),
        ("root ::= * ", "expected a string"),
        ("root = 1", "expected `name ::=`"),
    ] {
        let error = to_lark(text).expect_err(text);
        assert!(error.contains(words), "{text}: {error}");
    }
}
