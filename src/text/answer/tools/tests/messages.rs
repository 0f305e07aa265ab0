//! Tests of harmony's messages whose headers are broken.

use super::*;

/// What an answer thinks, says and calls, in pieces of every size.
fn read_messages(answer: &str) -> [String; 3] {
    let of_size = |size| {
        let parts = harmony(answer, size);
        let (content, calls) = told(&parts);
        let calls: String = calls
            .iter()
            .map(|(name, arguments)| format!("{name}{arguments}"))
            .collect();
        [parts.reasoning, content, calls]
    };
    let whole = of_size(usize::MAX);
    for size in 1..12 {
        assert_eq!(of_size(size), whole, "in pieces of {size}: {answer}");
    }
    whole
}

#[test]
fn a_message_whose_header_lacks_its_end_is_shown() {
    let long = "word ".repeat(100);
    let thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
    for text in [
        "{\"answer\": \"hi\"}",
        "Hello.",
        "[1, 2]",
        long.trim_end(),
        "It is <b>",
    ] {
        for form in [" ", "", "\n", " <|constrain|>json ", " <|constrain|>json"] {
            let is_clear = form.ends_with(' ') || text.starts_with(['{', '[']) && !form.is_empty();
            if !is_clear && !form.contains('\n') {
                continue;
            }
            for end in ["<|return|>", "<|end|>", ""] {
                for (channel, is_content) in
                    [("final", true), ("commentary", true), ("analysis", false)]
                {
                    let message = format!("<|channel|>{channel}{form}{text}{end}");
                    let (reasoning, content) = if is_content { ("", text) } else { (text, "") };
                    assert_eq!(
                        read_messages(&message),
                        [reasoning, content, ""].map(str::to_owned),
                        "{message}"
                    );
                    let both = format!("{thought}{message}");
                    assert_eq!(
                        read_messages(&both),
                        [&format!("Hm.{reasoning}"), content, ""].map(str::to_owned)
                    );
                }
            }
        }
    }
    let two = "<|channel|>analysis Hm.<|channel|>final<|message|>Hi.<|return|>";
    assert_eq!(read_messages(two), ["Hm.", "Hi.", ""].map(str::to_owned));
}

#[test]
fn a_call_whose_header_lacks_its_end_is_a_call() {
    for header in [
        "<|channel|>commentary to=functions.weather <|constrain|>json",
        "<|channel|>commentary to=functions.weather",
        " to=functions.weather<|channel|>commentary json",
    ] {
        let call = format!("{header}{{\"city\": \"Oslo\"}}<|call|>");
        let expected = ["", "", "weather{\"city\":\"Oslo\"}"].map(str::to_owned);
        assert_eq!(read_messages(&call), expected);
    }
}

#[test]
fn a_header_that_is_cut_is_not_shown() {
    let header = "<|channel|>commentary to=functions.weather <|constrain|>json";
    for (end, _) in header.char_indices() {
        let start = Start {
            stage: Stage::Undecided,
            is_blank: true,
        };
        let (mut parser, mut parts) = (Harmony::new(start, known()), Parts::default());
        parser.push(&header[..end], &mut parts);
        parser.finish(&mut parts, true);
        assert!(parts.is_empty(), "{}", &header[..end]);
    }
}
