//! What operators read: `/metrics` under the rules of Prometheus, the dashboard that draws it, and traces.

use crate::harness::{CHAT, COMPLETIONS, MODEL, Server, config, hello, ids, say, wait, with};
use folio::server::{RequestTrace, ServerOptions, TraceSink};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The metric that a sample belongs to.
fn family<'a>(name: &'a str, kinds: &BTreeMap<&str, &str>) -> &'a str {
    let mut parts = ["_bucket", "_sum", "_count"]
        .iter()
        .filter_map(|part| name.strip_suffix(part));
    parts
        .find(|family| kinds.get(family) == Some(&"histogram"))
        .unwrap_or(name)
}

#[test]
fn every_metric_has_help_a_type_and_one_place() {
    let server = Server::plain();
    server.post(CHAT, &hello());
    server.wait_until_idle();
    let text = server.get("/metrics").text;
    let (mut helps, mut kinds, mut open, mut closed) =
        (BTreeMap::new(), BTreeMap::new(), "", BTreeSet::new());
    let mut buckets: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        {
            assert!(
                help.ends_with('.') && helps.insert(name, help).is_none(),
                "{line}"
            );
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            assert!(
                helps.contains_key(name) && kinds.insert(name, kind).is_none(),
                "{line}"
            );
            // vLLM names this histogram like a counter.
            let is_counter = name.ends_with("_total") && name != "vllm:iteration_tokens_total";
            assert_eq!(kind == "counter", is_counter, "{line}");
            assert!(closed.insert(name), "{line}");
            open = name;
        } else {
            // Only what is the process's has no label of a model.
            let name = line.split(['{', ' ']).next().expect("a sample has a name");
            assert_eq!(
                line.contains("model_name="),
                name.starts_with("vllm:"),
                "{line}"
            );
            assert_eq!(
                family(name, &kinds),
                open,
                "samples of a metric follow its type: {line}"
            );
            let value: f64 = line
                .rsplit(' ')
                .next()
                .and_then(|value| value.parse().ok())
                .expect("a number");
            if name.ends_with("_bucket") {
                buckets.entry(open).or_default().push(value);
            } else if name.ends_with("_count") {
                let counts = &buckets[open];
                assert!(
                    counts.is_sorted() && counts.last() == Some(&value),
                    "{line}"
                );
            }
        }
    }
    assert_eq!(helps.len(), kinds.len());
    #[cfg(target_os = "linux")]
    assert!(
        kinds.contains_key("process_resident_memory_bytes"),
        "{text}"
    );
    assert!(text.contains("vllm:weight_bytes{"), "{text}");
    for name in [
        "queue_time",
        "prefill_time",
        "decode_time",
        "inference_time",
    ] {
        let line =
            format!("vllm:request_{name}_seconds_count{{engine=\"0\",model_name=\"{MODEL}\"}} 1");
        assert!(text.contains(&line), "{line}: {text}");
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../docs/grafana.json")).expect("it is JSON");
    let text = Server::plain().get("/metrics").text;
    let served: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| Some(line.split_once('{')?.0))
        .collect();
    let named = regex::Regex::new("vllm:[a-z0-9_]+").expect("a pattern");
    let mut count = 0;
    for panel in dashboard["panels"].as_array().expect("it has panels") {
        for target in panel["targets"].as_array().expect("a panel has targets") {
            let query = target["expr"].as_str().expect("a query");
            for name in named.find_iter(query) {
                count += 1;
                assert!(
                    served.contains(name.as_str()),
                    "{}: {query}",
                    panel["title"]
                );
            }
        }
    }
    assert!(count > 30, "{count} names");
    let variables = dashboard["templating"].to_string();
    assert!(
        named
            .find_iter(&variables)
            .all(|name| served.contains(name.as_str())),
        "{variables}"
    );
}

#[test]
fn a_trace_says_how_a_request_went() {
    let taken: Arc<Mutex<Vec<RequestTrace>>> = Arc::default();
    let kept = taken.clone();
    let sink = TraceSink(Arc::new(move |trace| {
        kept.lock().expect("no panic").push(trace);
    }));
    let server = Server::fake(
        "pause=2",
        config(),
        ServerOptions {
            traces: Some(sink),
            ..ServerOptions::default()
        },
    );
    let last = |count: usize| {
        wait("the traces are there", || {
            taken.lock().expect("no panic").len() == count
        });
        taken
            .lock()
            .expect("no panic")
            .last()
            .expect("one is there")
            .clone()
    };
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = axum::http::Request::post(CHAT).header("content-type", "application/json");
    let body = with(
        &hello(),
        &json!({"ignore_eos": true, "top_p": 0.5, "temperature": 0.7}),
    );
    let request = request
        .header("traceparent", parent)
        .body(axum::body::Body::from(body.to_string()));
    let answer = server.send(request.expect("a request")).json();
    let trace = last(1);
    assert_eq!(
        (trace.operation, trace.model.as_str(), trace.choices),
        ("chat", MODEL, 1)
    );
    assert_eq!(
        trace
            .parent
            .map(|parent| (parent.trace[1], parent.span[0], parent.sampled)),
        Some((0xf7, 0xb7, true))
    );
    assert_eq!(
        (trace.max_tokens, trace.temperature, trace.top_p),
        (Some(24), 0.7, 0.5)
    );
    assert_eq!(
        (trace.completion_tokens, &trace.finish_reasons[..]),
        (24, &["length"][..])
    );
    assert_eq!(answer["usage"]["prompt_tokens"], trace.prompt_tokens);
    let (queued, first) = (
        trace.queued.expect("it was admitted"),
        trace.first_token.expect("it has tokens"),
    );
    assert!(
        queued <= first && first < trace.duration && trace.error.is_none(),
        "{trace:?}"
    );
    let two = json!({"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "ignore_eos": true});
    server.post(COMPLETIONS, &two);
    let trace = last(2);
    assert_eq!(
        (trace.operation, trace.choices, trace.completion_tokens),
        ("text_completion", 2, 12)
    );
    assert_eq!((trace.parent, trace.finish_reasons.len()), (None, 4));
    let mut open = server.open(
        CHAT,
        &with(
            &hello(),
            &json!({"stream": true, "max_tokens": 500, "ignore_eos": true}),
        ),
    );
    assert!(open.more());
    drop(open);
    let trace = last(3);
    assert!(
        trace.error.is_some() && trace.completion_tokens < 500,
        "{trace:?}"
    );
    server.post(CHAT, &json!({"messages": []}));
    assert_eq!(
        taken.lock().expect("no panic").len(),
        3,
        "what was refused never ran"
    );
}

/// Each answer counts once, and no counter ever falls: Prometheus would take it for a restart.
#[test]
fn an_answer_that_a_stop_string_ends_counts_once_as_stopped() {
    // Slowly, so that clients leave before the end.
    let script = format!("pause=2,{}", say(&["one two three STOP four five six"]));
    let server = Server::fake(&script, config(), ServerOptions::default());
    let ends = || {
        let text = server.get("/metrics").text;
        ["stop", "length", "abort", "error"].map(|reason| {
            let line = format!(
                "vllm:request_success_total{{engine=\"0\",model_name=\"{MODEL}\",finished_reason=\"{reason}\"}} "
            );
            let count = text
                .lines()
                .find_map(|sample| sample.strip_prefix(&line))
                .expect("a sample");
            count.parse::<u64>().expect("a number")
        })
    };
    let long = json!({"stream": true, "max_tokens": 500, "ignore_eos": true});
    for _ in 0..3 {
        let mut open = server.open(CHAT, &with(&hello(), &long));
        assert!(open.more());
        drop(open);
        server.wait_until_idle();
    }
    assert_eq!(ends(), [0, 0, 3, 0]);
    // A stop string within the answer, and one that is complete with the last token that is allowed.
    let at_last = ids("one two three STOP").len();
    let mut before = ends();
    for (count, max_tokens) in [24, at_last, 24, at_last].into_iter().enumerate() {
        let answer = server.post(
            CHAT,
            &with(
                &hello(),
                &json!({"stop": ["STOP"], "max_tokens": max_tokens}),
            ),
        );
        let choice = answer.json()["choices"][0].clone();
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("stop"), &json!("one two three "))
        );
        wait("the answer is counted", || {
            let now = ends();
            assert!(
                now.iter().zip(before).all(|(now, before)| *now >= before),
                "{now:?} after {before:?}"
            );
            before = now;
            now[0] + now[1] == count as u64 + 1
        });
        assert_eq!((before[2], before[3]), (3, 0), "none is aborted");
    }
    assert!(before[0] >= 2, "{before:?}");
}
