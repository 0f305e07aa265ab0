//! Forced calls in every notation: which answers a grammar allows, and that its parser reads them.

use super::super::tests::formats::FORMATS;
use super::super::{CallParser, Parts, ToolSet};
use super::*;
use crate::model::demo;
use crate::text::integers;
use crate::text::{Grammars, TextModel};
use serde_json::json;
use std::sync::Arc;

/// The demo's tokenizer, in which some tokens have other names; with `special`, they are not text.
fn tokenizer(names: &[(&str, &str)], special: bool) -> Arc<Tokenizer> {
    let mut json: Value =
        serde_json::from_slice(demo::TOKENIZER_JSON).expect("the demo's tokenizer");
    for token in json["added_tokens"].as_array_mut().expect("a list") {
        if let Some((_, name)) = names.iter().find(|(own, _)| token["content"] == *own) {
            token["content"] = (*name).into();
            token["special"] = special.into();
        }
    }
    let text = TextModel::from_parts(Some(json.to_string().as_bytes()), None, None)
        .expect("a tokenizer, renamed");
    text.tokenizer.expect("it has one")
}

/// The markers of a format under the names of the demo's tokens.
fn names(parser: ToolParser) -> Vec<(&'static str, &'static str)> {
    ["<tool_call>", "</tool_call>", "<think>", "</think>"]
        .into_iter()
        .zip(parser.markers().iter().copied())
        .collect()
}

fn weather() -> Value {
    json!({"name": "get_weather", "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "exact": {"type": "boolean"},
            "more": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}},
                "limit": {"type": "number"}}, "required": ["limit"]},
        },
        "required": ["city", "days"],
    }})
}

fn clock() -> Value {
    json!({"name": "get_time", "parameters": {"type": "object", "properties": {}}})
}

fn choice(functions: Vec<Value>) -> ToolChoice {
    let callable = Arc::new(ToolSet::new(functions));
    ToolChoice {
        shown: Some(json!([])),
        callable,
        forced: None,
        single: false,
    }
}

/// Whether the grammar allows this answer, token by token, and allows it to end.
fn allows(spec: &GrammarSpec, tokenizer: &Arc<Tokenizer>, answer: &str) -> bool {
    let end = tokenizer.id_of("<|im_end|>").expect("a token");
    let vocab = 4096_u32;
    let grammars =
        Grammars::new(tokenizer.clone(), vocab, &[end], 1 << 20).expect("the vocabulary is right");
    let mut state = grammars.compile(spec).expect("it compiles").start();
    let ids = tokenizer.encode(answer, false).expect("it encodes");
    let mut is_allowed = |id: u32| {
        let mut mask = vec![0; vocab.div_ceil(32) as usize];
        let is_open = state.fill_mask(&mut mask).is_ok();
        let is_allowed = is_open && mask[id as usize / 32] >> (id % 32) & 1 == 1;
        // Whether the answer is complete.
        if is_allowed {
            state.accept(id).ok()
        } else {
            None
        }
    };
    for (at, id) in ids.iter().enumerate() {
        match is_allowed(*id) {
            Some(true) => return at + 1 == ids.len(),
            Some(false) => {}
            None => return false,
        }
    }
    is_allowed(end).is_some()
}

/// Name and arguments of the calls of an answer, which has no content.
fn calls(parser: ToolParser, tools: &ToolChoice, answer: &str) -> Vec<(String, Value)> {
    let (mut reader, mut parts) = (CallParser::new(parser, &tools.callable), Parts::default());
    reader.push(answer, &mut parts);
    reader.finish(&mut parts, false);
    assert_eq!(parts.content, "", "{answer}");
    let call = |call: super::super::CallDelta| {
        let arguments = serde_json::from_str(&call.arguments).expect("arguments are JSON");
        (call.name.expect("a call has a name"), arguments)
    };
    parts.calls.into_iter().map(call).collect()
}

/// A format, a call to `get_weather` with all of its arguments, one with the least, one to `get_time`, and what is
/// between two calls.
const WRITTEN: [(ToolParser, [&str; 4]); 5] = [
    (
        ToolParser::Gemma4,
        [
            "<|tool_call>call:get_weather{city:<|\"|>Pa\"ris, {x}\n<|\"|>,days:3,unit:<|\"|>C<|\"|>,exact:true,\
             more:{tags:[<|\"|>a<|\"|>,<|\"|><|\"|>],limit:-1.5e2}}<tool_call|>",
            "<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>,days:7}<tool_call|>",
            "<|tool_call>call:get_time{}<tool_call|>",
            "",
        ],
    ),
    (
        ToolParser::Gemma,
        [
            "<start_function_call>call:get_weather{city:<escape>Pa\"ris, {x}\n<escape>,days:3,unit:<escape>C<escape>,\
             exact:true,more:{tags:[<escape>a<escape>,<escape><escape>],limit:-1.5e2}}<end_function_call>",
            "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:7}<end_function_call>",
            "<start_function_call>call:get_time{}<end_function_call>",
            "",
        ],
    ),
    (
        ToolParser::Glm,
        [
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Pa\"ris, {x}\n\n</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n\
             <arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n<arg_key>more</arg_key>\n\
             <arg_value>{\"tags\": [\"a\", \"\"], \"limit\": -1.5e2}</arg_value>\n</tool_call>",
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>\
             <arg_value>7</arg_value></tool_call>",
            "<tool_call>get_time</tool_call>",
            "\n",
        ],
    ),
    (
        ToolParser::SeedOss,
        [
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Pa\"ris, {x}\n\n</parameter>\n\
             <parameter=days>3</parameter>\n<parameter=unit>C</parameter>\n<parameter=exact>true</parameter>\n\
             <parameter=more>{\"tags\": [\"a\", \"\"], \"limit\": -1.5e2}</parameter>\n</function>\n</seed:tool_call>",
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n\
             <parameter=days>7</parameter>\n</function>\n</seed:tool_call>",
            "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
            "\n",
        ],
    ),
    (
        ToolParser::Lfm2,
        [
            "<|tool_call_start|>[get_weather(city=\"Pa\\\"ris, {x}\\n\", days=3, unit=\"C\", exact=True, \
             more={\"tags\": [\"a\", \"\"], \"limit\": -1.5e2})]<|tool_call_end|>",
            "<|tool_call_start|>[get_weather(city=\"Oslo\", days=7)]<|tool_call_end|>",
            "<|tool_call_start|>[get_time()]<|tool_call_end|>",
            "",
        ],
    ),
];

#[test]
fn calls_have_the_form_of_the_model() {
    for (parser, [all, least, none, between]) in WRITTEN {
        for special in [true, false] {
            let tokenizer = tokenizer(&names(parser), special);
            let tools = choice(vec![weather(), clock()]);
            let (spec, read_by) = forced_calls(parser, &tools, &tokenizer).expect("a grammar");
            assert_eq!(read_by, parser);
            let place = format!("{parser:?}, special: {special}");
            let whole = json!({"city": "Pa\"ris, {x}\n", "days": 3, "unit": "C", "exact": true,
                "more": {"tags": ["a", ""], "limit": -150.0}});
            let expected = [
                ("get_weather", whole),
                ("get_weather", json!({"city": "Oslo", "days": 7})),
                ("get_time", json!({})),
            ];
            for (answer, (name, arguments)) in [all, least, none].into_iter().zip(&expected) {
                assert!(allows(&spec, &tokenizer, answer), "{place}: {answer}");
                assert_eq!(
                    calls(parser, &tools, answer),
                    [((*name).to_owned(), arguments.clone())],
                    "{place}"
                );
            }
            // Of LFM2, several calls are one list.
            let two = match parser {
                ToolParser::Lfm2 => least.replace(")]", "), get_time()]"),
                _ => format!("{least}{between}{none}"),
            };
            assert!(allows(&spec, &tokenizer, &two), "{place}: {two}");
            assert_eq!(calls(parser, &tools, &two).len(), 2, "{place}: {two}");
            let one = ToolChoice {
                single: true,
                ..tools.clone()
            };
            let (single, _) = forced_calls(parser, &one, &tokenizer).expect("a grammar");
            assert!(
                allows(&single, &tokenizer, least) && !allows(&single, &tokenizer, &two),
                "{place}: one call"
            );
            let named = ToolChoice {
                forced: Some(vec![clock()]),
                ..tools
            };
            let (named, _) = forced_calls(parser, &named, &tokenizer).expect("a grammar");
            assert!(
                allows(&named, &tokenizer, none) && !allows(&named, &tokenizer, least),
                "{place}: named"
            );
            for (what, wrong) in [
                ("another type", least.replace('7', "x")),
                ("beyond the maximum", least.replace('7', "8")),
                ("another constant", all.replace('C', "K")),
                (
                    "an unknown function",
                    least.replace("get_weather", "get_news"),
                ),
                ("an unknown argument", least.replace("days", "week")),
                ("an argument is missing", all.replace("days", "unit")),
                ("no call", "I look. ".to_owned() + least),
                ("more than calls", least.to_owned() + " Done."),
            ] {
                assert!(wrong != least && wrong != all, "{place}: {what}");
                assert!(
                    !allows(&spec, &tokenizer, &wrong),
                    "{place}, {what}: {wrong}"
                );
            }
        }
    }
}

/// A text ends where its parser ends it, however the marker is spelled.
#[test]
fn a_text_does_not_hold_its_end() {
    for (parser, [_, least, ..]) in WRITTEN {
        let end = match parser {
            ToolParser::Gemma4 => "<|\"|>",
            ToolParser::Gemma => "<escape>",
            ToolParser::Glm => "</arg_value>",
            ToolParser::SeedOss => "</parameter>",
            _ => "\"",
        };
        for special in [true, false] {
            let tokenizer = tokenizer(&names(parser), special);
            let (spec, _) =
                forced_calls(parser, &choice(vec![weather()]), &tokenizer).expect("a grammar");
            let twice = least.replace("Oslo", &format!("Os{end}lo"));
            assert!(
                !allows(&spec, &tokenizer, &twice),
                "{parser:?}, special: {special}"
            );
            let nearly = least.replace("Oslo", &format!("Os{}lo", &end[..end.len() - 1]));
            assert!(
                allows(&spec, &tokenizer, &nearly),
                "{parser:?}, special: {special}: {nearly}"
            );
        }
    }
}

/// Values without a schema, and free objects, are anything that the notation has.
#[test]
fn values_without_a_schema_are_any() {
    let function = json!({"name": "set", "parameters": {"type": "object", "properties": {
        "value": {}, "free": {"type": "object"}, "none": {"type": "null"}}}});
    let table = [
        (
            ToolParser::Gemma4,
            "<|tool_call>call:set{value:[1,{a:<|\"|>b<|\"|>},null],free:{},none:null}<tool_call|>",
        ),
        (
            ToolParser::Lfm2,
            "<|tool_call_start|>[set(value=[1, {\"a\": \"b\"}, None], free={}, none=None)]<|tool_call_end|>",
        ),
        (
            ToolParser::SeedOss,
            "<seed:tool_call>\n<function=set>\n<parameter=value>[1, {\"a\": \"b\"}, null]</parameter>\n\
             <parameter=free>{}</parameter>\n<parameter=none>null</parameter>\n</function>\n</seed:tool_call>",
        ),
    ];
    for (parser, answer) in table {
        let tokenizer = tokenizer(&names(parser), true);
        let tools = choice(vec![function.clone()]);
        let (spec, read_by) = forced_calls(parser, &tools, &tokenizer).expect("a grammar");
        assert_eq!(read_by, parser);
        assert!(allows(&spec, &tokenizer, answer), "{answer}");
        let expected = json!({"value": [1, {"a": "b"}, null], "free": {}, "none": null});
        assert_eq!(
            calls(parser, &tools, answer),
            [("set".to_owned(), expected)]
        );
    }
}

/// What a notation cannot enforce is a call in JSON.
#[test]
fn a_schema_that_a_notation_cannot_enforce_is_json() {
    let parameters = [
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}}),
        json!({"type": "object", "properties": {"a b": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "null"}}}),
        json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}),
    ];
    for parameters in parameters {
        let tools = choice(vec![json!({"name": "f", "parameters": parameters})]);
        for (parser, _) in WRITTEN {
            let tokenizer = tokenizer(&names(parser), true);
            let (spec, read_by) = forced_calls(parser, &tools, &tokenizer).expect("a grammar");
            assert_eq!(read_by, ToolParser::Json, "{parser:?}: {parameters}");
            assert!(
                allows(
                    &spec,
                    &tokenizer,
                    "[{\"name\": \"f\", \"arguments\": {\"a\": \"xyz\"}}]"
                ) || parameters.get("$defs").is_some()
                    || parameters["properties"].get("a b").is_some()
            );
        }
    }
}

/// With a schema for answers, a call may come instead, in the form of the model.
#[test]
fn a_call_may_come_instead_of_json() {
    let answer = GrammarSpec::Schema {
        schema: json!({"type": "object", "properties": {"noon": {"type": "boolean"}}}),
        strict: true,
    };
    for (parser, [_, least, ..]) in WRITTEN {
        let tokenizer = tokenizer(&names(parser), true);
        let tools = choice(vec![weather(), clock()]);
        let spec = calls_or_json(parser, &tools, &tokenizer, &answer)
            .expect("a grammar")
            .expect("both can be told apart");
        for (text, expected) in [
            (least, true),
            ("{\"noon\": true}", true),
            ("{\"city\": 1}", false),
            ("Hello", false),
        ] {
            assert_eq!(
                allows(&spec, &tokenizer, text),
                expected,
                "{parser:?}: {text}"
            );
        }
    }
}

/// Reader and grammar of a notation without quotes agree on what is a text.
#[test]
fn a_text_that_resembles_another_type_is_written_and_read_as_text() {
    let string = json!({"type": "string"});
    let nothing = json!({"type": "null"});
    let integer = json!({"type": "integer"});
    let number_or_text = json!({"anyOf": [integer, string]});
    let cases = [
        (
            string.clone(),
            vec![("123", json!("123")), ("null", json!("null"))],
        ),
        (
            json!({"anyOf": [string, nothing]}),
            vec![("2026", json!("2026")), ("null", Value::Null)],
        ),
        (
            json!({"type": ["string", "null"]}),
            vec![("true", json!("true")), ("a \"b\"", json!("a \"b\""))],
        ),
        (
            number_or_text,
            vec![("5", json!(5)), ("five", json!("five"))],
        ),
        (
            json!({"enum": ["1", "2", true, null]}),
            vec![
                ("1", json!("1")),
                ("true", json!(true)),
                ("null", Value::Null),
            ],
        ),
        (
            json!({"anyOf": [{"const": "1"}, nothing]}),
            vec![("1", json!("1")), ("null", Value::Null)],
        ),
    ];
    for (schema, values) in cases {
        let parameters = json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
        let tools = choice(vec![json!({"name": "f", "parameters": parameters})]);
        for (text, value) in values {
            let glm = format!(
                "<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
            );
            let seed = format!(
                "<seed:tool_call>\n<function=f>\n<parameter=a>{text}</parameter>\n</function>\n</seed:tool_call>"
            );
            for (parser, answer) in [(ToolParser::Glm, glm), (ToolParser::SeedOss, seed)] {
                let tokenizer = tokenizer(&names(parser), true);
                let (spec, read_by) = forced_calls(parser, &tools, &tokenizer).expect("a grammar");
                assert_eq!(read_by, parser, "{parameters}");
                assert!(
                    allows(&spec, &tokenizer, &answer),
                    "{answer} by {parameters}"
                );
                assert_eq!(
                    calls(parser, &tools, &answer),
                    [("f".to_owned(), json!({"a": value}))]
                );
            }
        }
    }
    // What cannot be told apart without quotes, or is demanded of a text, is a call in JSON.
    for schema in [
        json!({"enum": ["1", 1]}),
        json!({"anyOf": [{"type": "string", "minLength": 2}, nothing]}),
    ] {
        let tools = choice(vec![
            json!({"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}),
        ]);
        for parser in [ToolParser::Glm, ToolParser::SeedOss] {
            let tokenizer = tokenizer(&names(parser), true);
            let (_, read_by) = forced_calls(parser, &tools, &tokenizer).expect("a grammar");
            assert_eq!(read_by, ToolParser::Json, "{schema}");
        }
    }
}

/// Calls without a marker may come instead of JSON, too.
#[test]
fn a_call_in_plain_json_may_come_instead_of_json() {
    let schema = json!({"type": "object", "properties": {"noon": {"type": "boolean"}}, "required": ["noon"]});
    let page = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/Page"}}, "required": ["next"]});
    let page = json!({"name": "turn", "parameters": {"$ref": "#/$defs/Page", "$defs": {"Page": {
        "anyOf": [page, {"type": "object", "properties": {"last": {"type": "integer"}}, "required": ["last"]}]}}}});
    for (parser, key) in [
        (ToolParser::Llama3Json, "parameters"),
        (ToolParser::Json, "arguments"),
    ] {
        let tokenizer = tokenizer(&[], true);
        let tools = choice(vec![clock(), page.clone()]);
        let spec = |schema: Value| {
            let answer = GrammarSpec::Schema {
                schema,
                strict: true,
            };
            calls_or_json(parser, &tools, &tokenizer, &answer).expect("a grammar")
        };
        let both = spec(schema.clone()).expect("both can be told apart");
        let time = format!("{{\"name\": \"get_time\", \"{key}\": {{}}}}");
        let turn = format!("{{\"name\":\"turn\",\"{key}\":{{\"next\": {{\"last\": 5}}}}}}");
        let two = if parser == ToolParser::Json {
            format!("[{time}, {turn}]")
        } else {
            format!("{time}; {turn}")
        };
        for (text, expected) in [
            (time.as_str(), true),
            (&turn, true),
            (&two, true),
            ("{\"noon\": true}", true),
            ("{\"noon\": 1}", false),
            ("{\"name\": \"other\"}", false),
            (&time.replace("{}", "{\"a\": 1}"), false),
            (&turn.replace('5', "true"), false),
        ] {
            assert_eq!(
                allows(&both, &tokenizer, text),
                expected,
                "{parser:?}: {text}"
            );
        }
        assert!(spec(json!({"type": "object"})).is_some(), "any object");
        let call = json!({"type": "object", "properties": {"name": {}, (key): {}}});
        assert_eq!(spec(call), None, "it cannot be told apart");
    }
}

/// A function that declares no parameters has none, in every notation.
#[test]
fn a_forced_call_of_a_function_without_parameters_has_no_arguments() {
    for parameters in [
        Value::Null,
        json!({"type": "object", "properties": null, "required": null}),
    ] {
        let tools = choice(vec![json!({"name": "get_time", "parameters": parameters})]);
        for parser in ToolParser::NAMES.map(|name| name.parse().expect("a parser")) {
            let tokenizer = tokenizer(&names(parser), true);
            let (spec, _) = forced_calls(parser, &tools, &tokenizer).expect("a grammar");
            let GrammarSpec::Lark(grammar) = &spec else {
                panic!("a grammar of calls")
            };
            assert!(
                !grammar.contains("%json") || grammar.contains("\"properties\":{}"),
                "{parser:?}: {grammar}"
            );
        }
    }
}

#[test]
fn long_integers_of_a_call_keep_their_digits_in_every_notation() {
    let long = "123456789012345678901234567890";
    let parameters = format!(
        r#"{{"type": "object", "properties": {{"id": {{"enum": [{long}, 7]}}}}, "required": ["id"]}}"#
    );
    let parameters = integers::parse(&parameters).expect("JSON");
    let tools = choice(vec![json!({"name": "f", "parameters": parameters})]);
    let rounded = long.parse::<f64>().expect("a number").to_string();
    for (parser, call) in [
        (ToolParser::Gemma4, "<|tool_call>call:f{id:N}<tool_call|>"),
        (
            ToolParser::Glm,
            "<tool_call>f<arg_key>id</arg_key><arg_value>N</arg_value></tool_call>",
        ),
        (
            ToolParser::Hermes,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"id\": N}}\n</tool_call>",
        ),
    ] {
        let tokenizer = tokenizer(&names(parser), true);
        let (spec, read_by) = forced_calls(parser, &tools, &tokenizer).expect("a grammar");
        assert_eq!(read_by, parser);
        for (number, is_allowed) in [(long, true), ("7", true), (&rounded, false), ("1", false)] {
            let answer = call.replace('N', number);
            assert_eq!(allows(&spec, &tokenizer, &answer), is_allowed, "{answer}");
        }
    }
}

/// A forced call has the form that the model was trained on, which its parser reads.
#[test]
fn forced_calls_are_written_as_each_family_writes_them() {
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"]});
    let tools = choice(vec![
        json!({"name": "get_weather", "parameters": city}),
        clock(),
    ]);
    let one = [("get_weather", json!({"city": "Paris", "days": 3}))];
    let two = [one[0].clone(), ("get_time", json!({}))];
    for format in &FORMATS {
        let is_json = format.parser.format().form.is_none();
        // Markers are special tokens, or plain text.
        for names in [names(format.parser), Vec::new()] {
            let tokenizer = tokenizer(&names, true);
            let (spec, read_by) =
                forced_calls(format.parser, &tools, &tokenizer).expect("a grammar");
            let expected = if is_json {
                ToolParser::Json
            } else {
                format.parser
            };
            assert_eq!(read_by, expected);
            if is_json {
                continue;
            }
            for made in [&one[..], &two] {
                let answer = (format.calls)(made);
                assert!(
                    allows(&spec, &tokenizer, &answer),
                    "{:?}: {answer}",
                    format.parser
                );
                let expected: Vec<_> = made
                    .iter()
                    .map(|(name, arguments)| ((*name).to_owned(), arguments.clone()))
                    .collect();
                assert_eq!(calls(format.parser, &tools, &answer), expected);
            }
            let other = (format.calls)(&[("get_news", json!({}))]);
            assert!(
                !allows(&spec, &tokenizer, &other),
                "{:?}: {other}",
                format.parser
            );
            let wrong = (format.calls)(&[("get_weather", json!({"days": 3}))]);
            assert!(
                !allows(&spec, &tokenizer, &wrong),
                "{:?}: {wrong}",
                format.parser
            );
        }
    }
}

/// Where calls have marks of their own, an answer may be a call or JSON with a schema.
#[test]
fn a_call_of_each_family_may_come_instead_of_json() {
    let schema = json!({"type": "object", "properties": {"noon": {"type": "boolean"}}, "required": ["noon"]});
    let spec = GrammarSpec::Schema {
        schema,
        strict: false,
    };
    let tools = choice(vec![clock()]);
    for format in &FORMATS {
        let tokenizer = tokenizer(&names(format.parser), true);
        let either = calls_or_json(format.parser, &tools, &tokenizer, &spec).expect("a grammar");
        assert_eq!(either.is_some(), format.parser.format().form.is_some());
        let call = (format.calls)(&[("get_time", json!({}))]);
        let Some(either) = either else { continue };
        for (answer, is_allowed) in [("{\"noon\": true}", true), (&call, true), ("noon", false)] {
            let allowed = allows(&either, &tokenizer, answer);
            assert_eq!(allowed, is_allowed, "{:?}: {answer}", format.parser);
        }
    }
}
