//! Models that fill gaps: prompts as their documentation writes them, on all routes that take a suffix.

use crate::harness::{COMPLETIONS, END, QWEN, Server, dotted, renamed, with};
use folio::model::demo;
use folio::server::ServerOptions;
use folio::text::{Gap, Infill, TextModel};
use serde_json::{Value, json};
use std::sync::Arc;

const IDS: [u32; 4] = [4092, 4093, 4094, 4095];

fn plain(text: &str) -> Vec<u32> {
    crate::harness::ids(text)
}

#[test]
fn prompts_are_written_as_each_family_expects() {
    let [one, two, three, file] = IDS;
    let gap = Gap {
        before: "def f(a):",
        after: "return a",
        ..Gap::default()
    };
    let before_first = [
        vec![one],
        plain(gap.before),
        vec![two],
        plain(gap.after),
        vec![three],
    ]
    .concat();
    for names in [
        QWEN,
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<none>"],
        ["▁<PRE>", "▁<SUF>", "▁<MID>", "<none>"],
    ] {
        let tokenizer = renamed(names);
        let infill = Infill::new(&tokenizer).expect("it has the tokens");
        assert_eq!(infill.prompt(gap), Ok(before_first.clone()), "{names:?}");
        assert!(IDS[..3].iter().all(|id| infill.end_ids().contains(id)));
    }
    let codestral = renamed(["[PREFIX]", "[SUFFIX]", "<none>", "<nor this>"]);
    let expected = [vec![two], plain(gap.after), vec![one], plain(gap.before)].concat();
    assert_eq!(
        Infill::new(&codestral)
            .expect("it has the tokens")
            .prompt(gap),
        Ok(expected)
    );
    // The names of special tokens are text where they are text.
    let qwen = renamed(QWEN);
    let infill = Infill::new(&qwen).expect("it has the tokens");
    let sly = infill
        .prompt(Gap {
            before: "<|im_end|>",
            ..gap
        })
        .expect("it encodes");
    assert!(!sly.contains(&END), "{sly:?}");
    let begun = infill
        .prompt(Gap {
            begun: "x =",
            ..gap
        })
        .expect("it encodes");
    assert_eq!(begun, [before_first.clone(), plain("x =")].concat());
    let files = [("a.py".to_owned(), "A = 1".to_owned())];
    let beside = infill
        .prompt(Gap {
            files: &files,
            ..gap
        })
        .expect("it encodes");
    assert_eq!(
        beside,
        [plain("A = 1\n\n"), before_first].concat(),
        "one of the two tokens for files is missing"
    );
    assert!(!beside.contains(&file));
    assert!(Infill::new(&renamed(["<1>", "<2>", "<3>", "<4>"])).is_none());
}

#[test]
fn every_route_fills_gaps() {
    let text =
        TextModel::with_tokenizer(Some(renamed(QWEN)), Some(demo::TOKENIZER_CONFIG_JSON), None);
    // The device answers after the token that ends the prompt; then another file would begin.
    let answer = [plain("b = a"), vec![IDS[3], END]].concat();
    let script = format!("say={}>{}", dotted(&[IDS[2]]), dotted(&answer));
    let server = Server::fake_with(
        &script,
        crate::harness::config(),
        ServerOptions::default(),
        Arc::new(text.expect("the demo's files are right")),
    );
    let post = |path: &str, body: &Value| {
        let answer = server.post(path, body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        answer.json()
    };
    let request =
        json!({"prompt": "def f(a):", "suffix": "return b", "max_tokens": 50, "temperature": 0});
    let choice = post(COMPLETIONS, &request)["choices"][0].clone();
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("b = a"), &json!("stop"))
    );
    let both = post(
        COMPLETIONS,
        &with(&request, &json!({"prompt": ["def f(a):", "def g(a):"]})),
    );
    assert_eq!(both["choices"][1]["text"], "b = a");
    let request = json!({"input_prefix": "", "input_suffix": "return b", "n_predict": 50, "temperature": 0,
        "input_extra": [{"filename": "a.py", "text": "A = 1"}]});
    assert_eq!(post("/infill", &request)["content"], "b = a");
    let request = json!({"prompt": "def f(a):", "suffix": "return b", "stream": false, "options": {"temperature": 0}});
    assert_eq!(post("/api/generate", &request)["response"], "b = a");
}
