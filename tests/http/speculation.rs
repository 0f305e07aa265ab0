//! Speculation through the API: answers with drafts are those without, in every kind of request, and `/metrics` counts
//! the drafts.

use crate::harness::{
    CHAT, COMPLETIONS, Server, blanked, config, demo_text, hello, post, send, with,
};
use folio::backend::reference::ReferenceBackend;
use folio::config::{Config, Speculation};
use folio::engine;
use folio::model::Model;
use folio::platform::block_on;
use folio::server::ServerOptions;
use futures_util::future::join_all;
use serde_json::{Value, json};

/// A server that speculates so, or not at all.
pub(crate) fn server(speculation: Option<Speculation>) -> Server {
    let config = Config {
        speculation,
        ..config()
    };
    Server::start(
        |inbox| {
            engine::spawn(
                || Ok(ReferenceBackend::new()),
                Model::demo(),
                config,
                inbox,
                |_| {},
            )
        },
        ServerOptions::default(),
        demo_text(),
    )
}

/// Requests whose answers repeat their prompts, with everything that a draft must respect.
fn requests() -> Vec<(&'static str, Value)> {
    let list = "one two three four one two three four one two three";
    let base = json!({"prompt": list, "max_tokens": 40, "seed": 5, "temperature": 0});
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    let completions = [
        json!({}),
        json!({"temperature": 0.9}),
        json!({"stop": ["e", "o"]}),
        json!({"n": 3, "temperature": 1.0, "logprobs": 3}),
        json!({"min_tokens": 30, "repetition_penalty": 1.1, "frequency_penalty": 0.3}),
        json!({"echo": true, "logprobs": 2, "max_tokens": 12}),
        json!({"max_tokens": 1}),
    ];
    let structured =
        json!({"response_format": format, "max_tokens": 60, "logprobs": true, "top_logprobs": 2});
    let searched = json!({"use_beam_search": true, "best_of": 3, "max_tokens": 8, "seed": null});
    let completions = completions
        .iter()
        .chain([&searched])
        .map(|more| (COMPLETIONS, with(&base, more)));
    completions
        .chain([(CHAT, with(&hello(), &structured))])
        .collect()
}

#[test]
fn answers_with_drafts_are_those_without() {
    let lookup = Speculation {
        prompt_lookup_min: 1,
        prompt_lookup_max: 3,
        disable_by_batch_size: None,
        ..Speculation::DEFAULT
    };
    let answers = |server: &Server| -> Vec<String> {
        let all = requests();
        let sent = all
            .iter()
            .map(|(path, body)| send(&server.app, post(path, body)));
        block_on(join_all(sent))
            .iter()
            .map(|answer| blanked(&answer.text))
            .collect()
    };
    let (plain, drafting) = (server(None), server(Some(lookup)));
    let wanted = answers(&plain);
    assert!(
        wanted.iter().all(|answer| !answer.contains("\"error\"")),
        "{wanted:?}"
    );
    for round in 0..2 {
        assert_eq!(answers(&drafting), wanted, "round {round}");
    }
    let stats = drafting.engine.stats();
    assert!(
        stats.accepted_tokens() > 0 && stats.draft_tokens > stats.accepted_tokens(),
        "{stats:?}"
    );
    let text = drafting.get("/metrics").text;
    for (name, count) in [
        (
            "num_drafts_total{engine=\"0\",model_name=\"demo\"}",
            stats.drafts,
        ),
        (
            "num_draft_tokens_total{engine=\"0\",model_name=\"demo\"}",
            stats.draft_tokens,
        ),
        (
            "num_accepted_tokens_total{engine=\"0\",model_name=\"demo\"}",
            stats.accepted_tokens(),
        ),
        (
            "num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"demo\",position=\"0\"}",
            stats.accepted_at[0],
        ),
        (
            "num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"demo\",position=\"4\"}",
            stats.accepted_at[4],
        ),
    ] {
        assert!(
            text.contains(&format!("vllm:spec_decode_{name} {count}\n")),
            "{name}: {text}"
        );
    }
    assert!(
        !plain.get("/metrics").text.contains("per_pos"),
        "no places without speculation"
    );
}

#[test]
fn a_draw_without_drafts_says_why() {
    let server = server(Some(Speculation {
        disable_by_batch_size: Some(1),
        ..Speculation::DEFAULT
    }));
    let ask = |body: Value| send(&server.app, post("/v1/completions", &body));
    let body = json!({"prompt": "abcdefgh", "max_tokens": 12, "ignore_eos": true, "debug": {"drafts": true}});
    let alone = block_on(ask(body.clone())).json();
    let drafts = &alone["debug"]["drafts"][0];
    let of = |reason: &str| drafts["skips"][reason].as_u64().expect("a count");
    assert_eq!(alone["debug"].get("prefix"), None, "it was not asked for");
    assert_eq!(drafts["choice"], 0);
    assert!(
        of("nothing_found") > 0 && of("many_sequences") == 0,
        "{drafts}"
    );
    let mut two = body;
    two["n"] = 2.into();
    let two = block_on(ask(two)).json();
    let crowded =
        |choice: usize| two["debug"]["drafts"][choice]["skips"]["many_sequences"].as_u64();
    assert!(crowded(0) > Some(0) && crowded(1) > Some(0), "{two}");
    let total: u64 = server.engine.stats().draft_skips.iter().sum();
    let text = server.get("/metrics").text;
    let counted = text.lines().filter_map(|line| {
        line.strip_prefix("vllm:spec_decode_num_skips_total{")?
            .split(' ')
            .nth(1)
    });
    assert_eq!(
        counted
            .map(|count| count.parse::<u64>().expect("a count"))
            .sum::<u64>(),
        total
    );
}
