//! `folio plan`: whether a model fits, what to do if it does not, and that `serve` and `run` say the same.

use super::{Server, packed, refusal, result, run, text};
use serde_json::{Value, json};

/// The JSON report of `folio plan`, and its exit code.
fn planned(arguments: &[&str]) -> (Value, Option<i32>) {
    let output = run(&[&["plan", "--json"], arguments].concat());
    let stdout = text(&output.stdout);
    let report = serde_json::from_str(&stdout)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {stdout}"));
    (report, output.status.code())
}

/// The golden models have rows of 32 numbers.
#[test]
fn a_tower_and_the_rows_of_images_count_as_weights() {
    for family in ["smolvlm", "mistral3"] {
        let folder = packed::model("vision").join(family);
        let folder = folder.to_string_lossy();
        let weights = |rows: &str| {
            let options = [
                "--memory",
                "1GiB",
                "--model",
                &folder,
                "--max-image-rows",
                rows,
            ];
            let (report, _) = planned(&options);
            report["asked"]["weight_bytes"].as_u64().expect("a number")
        };
        let [none, few, more] = ["0", "128", "256"].map(weights);
        assert_eq!(more - few, 128 * 32 * 4, "{family}");
        assert!(
            few - none > 2 * (more - few),
            "{family}: the tower has weights of its own"
        );
    }
}

/// What is not supported of a model's images does not keep its text from being read.
#[test]
fn a_tower_that_is_refused_may_be_left_out() {
    let golden = packed::model("vision").join("mistral3");
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(&golden).expect("the folder is there") {
        let entry = entry.expect("a file");
        let to = folder.path().join(entry.file_name());
        std::fs::copy(entry.path(), to).expect("it is copied");
    }
    let name = folder.path().to_string_lossy();
    let options = ["plan", "--memory", "1GiB", "--model", &name];
    for (file, field, value) in [
        ("config.json", "vision_feature_layer", json!(-2)),
        ("preprocessor_config.json", "resample", json!(77)),
    ] {
        let path = folder.path().join(file);
        let right = std::fs::read(&path).expect("the file is there");
        let mut changed: Value = serde_json::from_slice(&right).expect("it is JSON");
        changed[field] = value;
        std::fs::write(&path, changed.to_string()).expect("it is written");
        refusal(&options, &[file, field, "--max-image-rows 0"]);
        let output = run(&[&options[..], &["--max-image-rows", "0"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        std::fs::write(&path, right).expect("it is written");
    }
}

/// The demo has 9.9 MiB of weights, 5.3 in q8 and 3.5 in q4, and 15.4 MiB of activations; a block takes 96 KiB.
#[test]
fn slots_for_adapters_count_as_weights() {
    let weights = |slots: &str| {
        let (report, _) = planned(&[
            "--memory",
            "6GiB",
            "--shape",
            "qwen3-0.6b",
            "--max-loras",
            slots,
        ]);
        report["asked"]["weight_bytes"].as_u64().expect("a number")
    };
    let [none, one, two] = ["0", "1", "2"].map(weights);
    // With one slot, there is another one without an adapter.
    let slot = two - one;
    assert_eq!(one - none, 2 * slot);
    // Seven projections of 28 layers, rank 16, f16: A and B have (inputs + outputs) × 16 elements each, and the parts
    // of fused matrices have an A of their own.
    let widths = [3 * 1024 + 4096, 2048 + 1024, 2 * 1024 + 6144, 3072 + 1024];
    let plain = 28 * 16 * 2 * widths.iter().sum::<u64>();
    assert!((plain..3 * plain).contains(&slot), "{slot} for {plain}");
}

#[test]
fn a_plan_without_a_model_lists_those_with_short_names() {
    let said = result(&["plan", "--memory", "6GiB"]);
    let line = |name: &str| {
        let mut lines = said.lines();
        let line = lines.find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {said}"))
    };
    assert!(line("qwen3:0.6b ").contains("fits, context"));
    assert!(line("qwen3:32b ").contains("does not fit"));
    assert!(line("lfm2:1.2b ").contains("size not known"));
    let of_one = result(&["plan", "--memory", "6GiB", "--shape", "qwen3-0.6b"]);
    assert!(!of_one.contains("qwen3:32b"), "{of_one}");
}

#[test]
fn plan_says_whether_it_fits_and_what_to_do() {
    let said = result(&["plan", "--memory", "6GiB"]);
    assert!(
        said.contains("weights      9.9 MiB") && said.contains("2048; 64 sequences"),
        "{said}"
    );
    assert!(
        said.lines().any(|line| line.starts_with("fits: ")),
        "{said}"
    );
    let (report, code) = planned(&["--memory", "6GiB"]);
    let asked = &report["asked"];
    assert_eq!((asked["fits"].as_bool(), code), (Some(true), Some(0)));
    assert_eq!(
        (&asked["max_model_len"], &asked["sequences"]),
        (&json!(2048), &json!(64))
    );
    assert_eq!(
        (&asked["kv_token_bytes"], &asked["blocks"]),
        (&json!(96 << 10 >> 5), &json!([2 * 64 * 64 + 2]))
    );

    let output = run(&["plan", "--memory", "22MiB"]);
    assert_eq!(output.status.code(), Some(1), "it does not fit");
    let said = text(&output.stdout);
    assert!(
        said.contains("\ndoes not fit: weights (9.9 MiB) and activations (16.0 MiB) leave no room for a KV pool"),
        "{said}"
    );
    let advice = "--quantization q4 --kv-cache-dtype q8";
    assert!(
        said.contains(&format!("\nwith {advice}: weights 3.5 MiB, context ")),
        "{said}"
    );
    let (report, code) = planned(&["--memory", "22MiB"]);
    assert_eq!(
        (report["asked"]["fits"].as_bool(), code),
        (Some(false), Some(1))
    );
    assert_eq!(report["advice"], advice);
    assert_eq!(report["others"][0]["fits"], false, "q8: {report}");
    // Following the advice has the predicted result.
    for other in report["others"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|other| other["fits"] == true)
    {
        let options = other["option"]
            .as_str()
            .expect("a text")
            .split(' ')
            .collect::<Vec<_>>();
        let (taken, code) = planned(&[&["--memory", "22MiB"], &options[..]].concat());
        assert_eq!(
            (&taken["asked"]["max_model_len"], code),
            (&other["max_model_len"], Some(0)),
            "{options:?}"
        );
    }
    let (report, code) = planned(&["--memory", "8MiB"]);
    assert_eq!((&report["advice"], code), (&Value::Null, Some(1)));
    assert!(
        report["summary"]
            .as_str()
            .is_some_and(|text| text.contains("use a smaller model")),
        "{report}"
    );

    let (report, _) = planned(&[
        "--shape",
        "llama-3-8b",
        "--memory",
        "24GiB",
        "--max-num-seqs",
        "8",
    ]);
    assert_eq!(
        (
            &report["asked"]["max_model_len"],
            &report["asked"]["kv_token_bytes"]
        ),
        (&json!(8192), &json!(131_072))
    );
    let host = ["--kv-host-bytes", "1GiB"];
    let (report, _) = planned(&[&["--memory", "6GiB"], &host[..]].concat());
    assert_eq!(report["asked"]["kv_host_bytes"], 1 << 30);
    let said = result(&[&["plan", "--device", "fake"], &host[..]].concat());
    assert!(
        said.contains(
            "\nhost memory  1.0 GiB for KV blocks that leave the pool, from the same memory"
        ),
        "{said}"
    );
    refusal(&["plan", "--memory", "0"], &["--memory"]);
    refusal(
        &["plan", "a", "--shape", "qwen3-0.6b"],
        &["cannot be used with"],
    );
    refusal(&["plan", "a", "--model", "b"], &["named twice"]);
    refusal(&["plan", "--shape", "1x2x3"], &["1x2x3"]);
    refusal(
        &["plan", "--device", "cpu", "--model", "no/such/folder"],
        &["no/such/folder"],
    );
}

#[test]
fn plan_reads_every_kind_of_model_and_measures_a_device_that_is_here() {
    let folder = packed::model("golden/qwen3").to_string_lossy().into_owned();
    let file = packed::model("gguf/tiny-qwen3-Q4_0.gguf")
        .to_string_lossy()
        .into_owned();
    for model in [folder, file] {
        let (report, code) = planned(&["--device", "cpu", &model]);
        assert_eq!((&report["model"], code), (&json!(model), Some(0)));
        assert!(
            report["device"]["read_gbps"]
                .as_f64()
                .is_some_and(|gbps| gbps > 0.0),
            "{report}"
        );
        assert!(
            report["asked"]["tokens_per_s_max"]
                .as_f64()
                .is_some_and(|speed| speed > 0.0),
            "{report}"
        );
    }
    let said = result(&["plan", "--device", "cpu"]);
    assert!(
        said.contains("at most ") && said.contains(" GB/s, as measured"),
        "{said}"
    );
}

#[test]
fn serve_refuses_what_plan_says_does_not_fit_and_in_its_words() {
    let device = "fake:memory=14680064";
    let (report, _) = planned(&["--device", device]);
    refusal(
        &["serve", "--port", "0", "--device", device],
        &[report["summary"].as_str().expect("a text")],
    );
    refusal(
        &["run", "--prompt", "a", "--device", device],
        &["no room for a KV pool in 12.6 MiB", "--quantization q4"],
    );
    refusal(
        &[
            "serve",
            "--port",
            "0",
            "--device",
            "fake",
            "--kv-cache-bytes",
            "1KiB",
        ],
        &["too small for any sequence"],
    );
    let options = ["--device", device, "--quantization", "q4"];
    let (report, _) = planned(&options);
    let greeting = Server::with(&options).greeting.clone();
    let context = &report["asked"]["max_model_len"];
    assert!(
        greeting.contains(&format!("context {context} × ")),
        "{greeting}"
    );
    assert!(
        greeting.contains(&format!("limited to {context} tokens instead of 2048")),
        "{greeting}"
    );
    let greeting = Server::with(&["--device", "fake"]).greeting.clone();
    assert!(
        greeting.contains("weights 9.9 MiB, activations 8.4 MiB, KV pool "),
        "{greeting}"
    );
}

/// What a report says on a line, between two texts.
fn said<'a>(report: &'a str, line: &str, (before, after): (&str, &str)) -> &'a str {
    let line = report
        .lines()
        .find(|text| text.starts_with(line))
        .unwrap_or_else(|| panic!("{line}: {report}"));
    let rest = line
        .split_once(before)
        .unwrap_or_else(|| panic!("{before}: {line}"))
        .1;
    rest.split(after).next().unwrap_or(rest).trim()
}

/// A row of the tables of shapes: `columns` is six if the shape has a recurrent state.
fn row(shape: &str, columns: usize) -> String {
    let of = ["--shape", shape, "--memory", "24GiB"];
    let report = |options: &[&str]| text(&run(&[&["plan"], &of[..], options].concat()).stdout);
    let (plain, q4) = (report(&[]), report(&["--quantization", "q4"]));
    let (small, _) =
        planned(&[&of[..], &["--quantization", "q4", "--kv-cache-dtype", "q8"]].concat());
    let weights = |report| said(report, "weights ", ("weights ", "\n"));
    let asked = &small["asked"];
    let context = match asked["fits"] == true {
        true => format!("{} × {}", asked["max_model_len"], asked["sequences"]),
        false => "none".to_owned(),
    };
    let mut cells = vec![
        shape,
        weights(&plain),
        weights(&q4),
        said(&plain, "KV pool ", ("tokens, ", " per token")),
    ];
    if columns == 6 {
        cells.push(said(&plain, "states ", ("snapshots, ", " each")));
    }
    cells.push(&context);
    format!("| {} |", cells.join(" | "))
}

#[test]
fn the_tables_of_shapes_are_what_plan_says() {
    let path = super::repository("docs/formats.md");
    let page = std::fs::read_to_string(&path).expect("the page is part of the repository");
    let (mut columns, mut rows) = (0, 0);
    let written = page.lines().map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        match &cells[..] {
            ["", "`--shape`", rest @ .., ""] => columns = rest.len() + 1,
            ["", shape, .., ""] if columns > 0 && !shape.starts_with('-') => {
                rows += 1;
                return row(shape, columns);
            }
            ["", ..] => {}
            _ => columns = 0,
        }
        line.to_owned()
    });
    let written = written.collect::<Vec<_>>().join("\n") + "\n";
    assert!(rows > 20, "{rows} rows");
    if std::env::var_os("FOLIO_REFRESH").is_some() {
        std::fs::write(&path, &written).expect("the page can be written");
    }
    let wrong: Vec<_> = page
        .lines()
        .zip(written.lines())
        .filter(|(old, new)| old != new)
        .collect();
    assert!(
        wrong.is_empty(),
        "docs/formats.md, rewritten with FOLIO_REFRESH=1: {wrong:#?}"
    );
}
