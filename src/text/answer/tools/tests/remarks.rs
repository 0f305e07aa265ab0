//! Tests of calls without markers that are not the whole answer.

use super::*;

const FORMS: [ToolParser; 2] = [ToolParser::Llama3Json, ToolParser::Json];

fn weather(city: &str) -> (String, (&'static str, Value)) {
    let arguments = json!({"city": city});
    let call = json!({"name": "weather", "parameters": arguments});
    (call.to_string(), ("weather", arguments))
}

#[test]
fn a_call_without_markers_is_one_wherever_it_begins() {
    let [one, two] = ["Paris", "Oslo"].map(weather);
    for form in FORMS {
        for (before, after, content) in [
            ("", "", ""),
            ("Here it is: ", "", "Here it is:"),
            ("I look.\n\n", "", "I look."),
            (
                "I look in {this} place [1]: ",
                "",
                "I look in {this} place [1]:",
            ),
            ("", "\nDone.", "Done."),
            ("", " and {\"x\": 1}", "and {\"x\": 1}"),
            ("```json\n", "\n```", ""),
            ("```\n", "\n```\nDone.", "Done."),
            ("Look:\n```json\n", "\n```", "Look:"),
            ("Look:\n```json\n[", "]\n```", "Look:"),
            ("<|python_tag|>", "", ""),
            ("Look: <|python_tag|>", "", "Look:"),
            ("Look: [", "]", "Look:"),
            (
                "{\"answer\": {\"x\": [1]}}\n",
                "",
                "{\"answer\": {\"x\": [1]}}",
            ),
        ] {
            let answer = format!("{before}{}{after}", one.0);
            check(form, &answer, content, std::slice::from_ref(&one.1));
            let answer = format!("{before}{}; {}{after}", one.0, two.0);
            check(form, &answer, content, &[one.1.clone(), two.1.clone()]);
        }
        let named = "<function=weather>{\"city\": \"Paris\"}</function>";
        check(form, named, "", std::slice::from_ref(&one.1));
        check(
            form,
            &format!("I look. {named}\nDone."),
            "I look.Done.",
            std::slice::from_ref(&one.1),
        );
        let other = "<function=weather>{\"city\": \"Oslo\"}</function>";
        check(
            form,
            &format!("{named}\n{other}"),
            "",
            &[one.1.clone(), two.1.clone()],
        );
    }
}

#[test]
fn json_that_names_no_function_of_the_request_is_content() {
    let call = weather("Paris").0;
    for form in FORMS {
        for content in [
            "It is {\"name\": \"other\", \"parameters\": {}}.".to_owned(),
            "It is {\"name\": \"weather\"}.".to_owned(),
            "{\"name\": \"weather\"}".to_owned(),
            "{\"parameters\": {}}".to_owned(),
            "It is {\"name\": \"weather\", \"parameters\": {invalid}}".to_owned(),
            "```json\n{\"name\": \"Bob\", \"age\": 5}\n```".to_owned(),
            "```\nfn main() { }\n```".to_owned(),
            format!("{{\"calls\": [ {call} ]}}"),
            format!("Data: {{\"name\": \"plan\", \"steps\": [ {call} ]}} so."),
            format!("[{{\"title\": \"x\"}}, {call}]"),
            format!("see:{call}"),
            "<function=other>{\"city\": \"Paris\"}</function>".to_owned(),
            "<function=weather> is a tag, {\"x\": 1} an object.".to_owned(),
            "<|python_tag|>print(1)".to_owned(),
            "a { b [ c ` d < e".to_owned(),
        ] {
            check(form, &content, &content, &[]);
        }
    }
}

#[test]
fn an_answer_in_json_streams_although_there_are_tools() {
    for form in FORMS {
        let (mut parser, mut parts) = (CallParser::new(form, &known()), Parts::default());
        parser.push("{\"answer\": \"It is ", &mut parts);
        assert_eq!(parts.content, "{\"answer\": \"It is");
    }
}
