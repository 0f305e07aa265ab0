//! Thoughts that end without their tag, or have it twice.

use super::*;

/// What an answer that starts at `stage` thinks, says and calls, in pieces of `size` characters.
pub(super) fn parts(
    format: (ToolParser, ReasoningParser),
    stage: Stage,
    answer: &str,
    size: usize,
) -> [String; 3] {
    let functions = vec![
        json!({"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}),
        json!({"name": "add"}),
    ];
    let tools = ToolChoice {
        shown: Some(json!([])),
        callable: Arc::new(ToolSet::new(functions)),
        ..ToolChoice::default()
    };
    let format = AnswerFormat {
        tools: format.0,
        reasoning: format.1,
    };
    let start = Start {
        stage,
        is_blank: true,
    };
    let mut parser = AnswerParser::new(format, start, &tools);
    let (mut all, characters) = (Parts::default(), answer.chars().collect::<Vec<_>>());
    for piece in characters.chunks(size) {
        parser.push(&piece.iter().collect::<String>(), &mut all);
    }
    parser.finish(&mut all, false);
    let mut calls = String::new();
    for call in all.calls {
        calls.push_str(call.name.as_deref().unwrap_or_default());
        calls.push_str(&call.arguments.replace(": ", ":"));
    }
    [all.reasoning, all.content, calls]
}

/// The same in pieces of every size, which makes no difference.
fn told(format: (ToolParser, ReasoningParser), stage: Stage, answer: &str) -> [String; 3] {
    let whole = parts(format, stage, answer, usize::MAX);
    for size in [1, 2, 3, 5, 8, 13] {
        let cut = parts(format, stage, answer, size);
        assert_eq!(cut, whole, "{format:?} in pieces of {size}: {answer}");
    }
    whole
}

/// Each way to call `weather`, with the argument `city`, between markers.
fn calls(city: &str) -> Vec<(ToolParser, String)> {
    use ToolParser as T;
    let json = json!({"name": "weather", "arguments": {"city": city}});
    let arguments = &json["arguments"];
    let tags = format!("<function=weather>\n<parameter=city>\n{city}\n</parameter>\n</function>");
    vec![
        (T::Hermes, format!("<tool_call>\n{json}\n</tool_call>")),
        (T::Hermes, format!("<tool_call>\n{tags}\n</tool_call>")),
        (T::Hermes, tags.clone()),
        (
            T::Glm,
            format!(
                "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n</tool_call>"
            ),
        ),
        (
            T::SeedOss,
            format!("<seed:tool_call>\n{tags}\n</seed:tool_call>"),
        ),
        (T::Llama3Json, format!("<|python_tag|>{json}")),
        (
            T::Llama3Json,
            format!("<function=weather>{arguments}</function>"),
        ),
        (T::Mistral, format!("[TOOL_CALLS][{json}]")),
        (T::Mistral, format!("[TOOL_CALLS]weather[ARGS]{arguments}")),
        (
            T::Gemma,
            format!(
                "<start_function_call>call:weather{{city:<escape>{city}<escape>}}<end_function_call>"
            ),
        ),
        (
            T::Gemma4,
            format!("<|tool_call>call:weather{{city:<|\"|>{city}<|\"|>}}<tool_call|>"),
        ),
        (
            T::Lfm2,
            format!("<|tool_call_start|>[weather(city=\"{city}\")]<|tool_call_end|>"),
        ),
    ]
}

const REASONING: [ReasoningParser; 4] = [
    ReasoningParser::Think,
    ReasoningParser::Mistral,
    ReasoningParser::Gemma,
    ReasoningParser::Seed,
];

#[test]
fn a_call_within_a_thought_ends_the_thought() {
    let own = |parts: [&str; 3]| parts.map(str::to_owned);
    for reasoning in REASONING {
        let (open, close) = reasoning.tags().expect("it has tags");
        for (form, call) in calls("Paris") {
            let made = "weather{\"city\":\"Paris\"}";
            let format = (form, reasoning);
            for (stage, begin) in [(Stage::Reasoning, ""), (Stage::Undecided, open)] {
                let answer = format!("{begin}\nI look it up.\n\n{call}");
                assert_eq!(
                    told(format, stage, &answer),
                    own(["I look it up.\n\n", "", made])
                );
                assert_eq!(
                    told(format, stage, &format!("{begin}{call}")),
                    own(["", "", made])
                );
            }
            // A closing tag that comes late is dropped, and what follows it is content.
            for (end, content) in [("", ""), ("\n\nDone.", "Done.")] {
                let answer = format!("Hm.\n{call}\n{close}{end}");
                assert_eq!(
                    told(format, Stage::Reasoning, &answer),
                    own(["Hm.\n", content, made])
                );
            }
            let two = format!("Hm.\n{call}\n{call}");
            assert_eq!(
                told(format, Stage::Reasoning, &two)[2],
                format!("{made}{made}")
            );
        }
    }
}

#[test]
fn a_call_within_a_thought_may_have_the_tags_of_thoughts_in_its_arguments() {
    for reasoning in REASONING {
        let (open, close) = reasoning.tags().expect("it has tags");
        let city = format!("{close} and {open} x");
        for (form, call) in calls(&city) {
            let [thought, content, made] = told(
                (form, reasoning),
                Stage::Reasoning,
                &format!("Hm.\n{call}{close}Done."),
            );
            assert_eq!((thought.as_str(), content.as_str()), ("Hm.\n", "Done."));
            assert_eq!(made, format!("weather{}", json!({"city": city})));
        }
    }
}

#[test]
fn a_thought_may_mention_the_markers_of_calls() {
    for reasoning in REASONING {
        let (_, close) = reasoning.tags().expect("it has tags");
        for thought in [
            "I could write <tool_call>, or </tool_call>, but no.",
            "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call> is the form.",
            "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call> is the form.",
            "<function=NAME> and <seed:tool_call> and <arg_key>.",
            "[TOOL_CALLS] begins one, [ARGS] its arguments.",
            "<|tool_call> and <start_function_call>, <|tool_call_start|> too.",
            "{\"name\": \"weather\", \"parameters\": {}}",
            "<tool_call> <tool_call> <tool_call>",
        ] {
            for form in ToolParser::NAMES.map(|name| name.parse().expect("a name")) {
                if form == ToolParser::Harmony {
                    continue;
                }
                let answer = format!("{thought}{close}\n\nDone.");
                let expected = [thought, "Done.", ""].map(str::to_owned);
                assert_eq!(
                    told((form, reasoning), Stage::Reasoning, &answer),
                    expected,
                    "{form:?}"
                );
            }
        }
    }
}

#[test]
fn tags_of_a_thought_are_no_content_where_they_are_repeated_or_forgotten() {
    for reasoning in REASONING {
        let (open, close) = reasoning.tags().expect("it has tags");
        for form in [ToolParser::Hermes, ToolParser::Json] {
            for (stage, answer, thought, content) in [
                (
                    Stage::Reasoning,
                    format!("a{close}{close}Hello."),
                    "a",
                    "Hello.",
                ),
                (
                    Stage::Reasoning,
                    format!("a{close}\n\n{close}\n{close}\nHello."),
                    "a",
                    "Hello.",
                ),
                (
                    Stage::Reasoning,
                    format!("\n{open}\na{close}Hello."),
                    "a",
                    "Hello.",
                ),
                (Stage::Reasoning, format!("{close}Hello."), "", "Hello."),
                (
                    Stage::Undecided,
                    format!("{open}{open}a{close}Hello."),
                    "a",
                    "Hello.",
                ),
                (Stage::Undecided, format!("{close}Hello."), "", "Hello."),
                (
                    Stage::Undecided,
                    format!("{open}\n{close}\n\n{open}\na{close}\nHello."),
                    "a",
                    "Hello.",
                ),
                (Stage::Undecided, format!("{close}{close}"), "", ""),
            ] {
                let expected = [thought, content, ""].map(str::to_owned);
                assert_eq!(
                    told((form, reasoning), stage, &answer),
                    expected,
                    "{answer}"
                );
            }
            // In the middle of an answer, a tag may be what the answer is about.
            let middle = format!("a{close}Write {close} after {open}.");
            let expected = format!("Write {close} after {open}.");
            assert_eq!(
                told((form, reasoning), Stage::Reasoning, &middle),
                ["a".to_owned(), expected, String::new()]
            );
        }
    }
}

#[test]
fn white_space_before_the_tag_that_closes_a_thought_is_no_part_of_it() {
    for reasoning in REASONING {
        let (_, close) = reasoning.tags().expect("it has tags");
        for form in [ToolParser::Hermes, ToolParser::Json] {
            let told = |answer: &str| told((form, reasoning), Stage::Reasoning, answer);
            let own = |parts: [&str; 3]| parts.map(str::to_owned);
            let answer = format!("One.\n\nTwo. \n\t{close}\nHello.");
            assert_eq!(told(&answer), own(["One.\n\nTwo.", "Hello.", ""]));
            assert_eq!(told("One.\n\nTwo.\n"), own(["One.\n\nTwo.\n", "", ""]));
        }
    }
}

#[test]
fn citations_of_command_are_told_without_their_tags() {
    let answer = "<|START_THINKING|>A <co>bow</co: 0:[1]>.<|END_THINKING|>\n\
                  <|START_RESPONSE|>The <co>sky</co: 0:[1,2],1:[3]>.<|END_RESPONSE|>";
    for form in [ToolParser::CommandR7b, ToolParser::Json] {
        let parts = told((form, ReasoningParser::Command), Stage::Undecided, answer);
        assert_eq!(parts, ["A bow.", "The sky.", ""].map(str::to_owned));
    }
    let other = told(
        (ToolParser::Json, ReasoningParser::Think),
        Stage::Undecided,
        "<co>x</co>",
    );
    assert_eq!(other[1], "<co>x</co>");
}

#[test]
fn a_thought_of_gemma_may_lack_the_word_that_opens_it() {
    let told = |stage: Stage, answer: &str| {
        let format = (ToolParser::Gemma4, ReasoningParser::Gemma);
        told(format, stage, answer)
    };
    for (answer, thought, content) in [
        ("<|channel>Hm.<channel|>Hello.", "Hm.", "Hello."),
        (
            "<|channel>thousands\n<channel|>Hello.",
            "thousands",
            "Hello.",
        ),
        ("<|channel>\nthought\nHm.<channel|>Hello.", "Hm.", "Hello."),
        ("<|channel>Hm.", "Hm.", ""),
        ("<|channels>", "", "<|channels>"),
    ] {
        let expected = [thought, content, ""].map(str::to_owned);
        assert_eq!(told(Stage::Undecided, answer), expected, "{answer}");
    }
    let word = told(Stage::Reasoning, "thought\nHm.<channel|>Hello.");
    assert_eq!(word, ["Hm.", "Hello.", ""].map(str::to_owned));
}

#[test]
fn a_thought_of_gemma_may_lack_the_token_that_opens_it() {
    let told = |answer: &str| {
        told(
            (ToolParser::Gemma4, ReasoningParser::Gemma),
            Stage::Undecided,
            answer,
        )
    };
    let own = |parts: [&str; 3]| parts.map(str::to_owned);
    assert_eq!(
        told("thought\nHm.<channel|>Hello."),
        own(["Hm.", "Hello.", ""])
    );
    let call = "<|tool_call>call:weather{city:<|\"|>Paris<|\"|>}<tool_call|>";
    assert_eq!(
        told(&format!("thought\nHm.\n{call}")),
        own(["Hm.\n", "", "weather{\"city\":\"Paris\"}"])
    );
    for content in [
        "thoughtful",
        "thought",
        "A thought\nis one.",
        "thoughts<channel|>",
    ] {
        assert_eq!(told(content), own(["", content, ""]));
    }
}
