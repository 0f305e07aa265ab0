//! What goes wrong with a hub or a cache: repaired, refused or waited for.

use super::*;

#[test]
fn pull_repairs_what_is_damaged_in_the_cache() {
    let hub = tiny();
    let user = User::of(&hub);
    user.pull("org/tiny");
    hub.requests();
    let weights = golden("model.safetensors");
    let flipped = weights
        .iter()
        .enumerate()
        .map(|(at, byte)| byte ^ u8::from(at == 1000))
        .collect();
    let damages: [(&str, Vec<u8>); 4] = [
        ("model.safetensors", flipped),
        ("model.safetensors", weights[..weights.len() - 1].to_vec()),
        ("config.json", vec![b' '; golden("config.json").len()]),
        ("config.json", Vec::new()),
    ];
    for (name, bytes) in damages {
        fs::write(user.repo().join("blobs").join(hub.hash(name)), bytes)
            .expect("the blob is there");
        let output = user.run(&["pull", "org/tiny"]);
        let message = text(&output.stderr);
        assert!(output.status.success(), "{message}");
        let said = format!("org/tiny: {name} is damaged in the local cache: downloading it again");
        assert_eq!(
            message
                .lines()
                .filter(|line| line.contains("damaged"))
                .collect::<Vec<_>>(),
            [said],
            "{message}"
        );
        for part in ["config.json", "model.safetensors"] {
            assert_eq!(
                fs::read(user.snapshot().join(part)).expect("it reads"),
                golden(part),
                "{name}: {part}"
            );
        }
        let lines = hub.lines();
        assert_eq!(
            count(&lines, "GET hub /org"),
            1,
            "only what is damaged is downloaded: {lines:?}"
        );
    }
}

#[test]
fn refusals_say_what_to_do() {
    let hub = tiny();
    let user = User::of(&hub);
    let check = |part: &str, status: u16, headers: &'static [(&str, &str)], words: &[&str]| {
        hub.fail(1, part, BadResponse::Status(status, headers));
        user.refusal(&["pull", "org/tiny@v1"], words);
        hub.requests();
    };
    check(
        "/api/",
        401,
        &[("X-Error-Code", "RepoNotFound")],
        &["org/tiny", "private", "HF_TOKEN"],
    );
    check(
        "/api/",
        404,
        &[("X-Error-Code", "RepoNotFound")],
        &["org/tiny was not found"],
    );
    check(
        "/api/",
        404,
        &[("X-Error-Code", "RevisionNotFound")],
        &["org/tiny has no revision v1"],
    );
    check(
        "/api/",
        404,
        &[],
        &["org/tiny at http", "has no revision v1"],
    );
    check(
        "HEAD",
        401,
        &[("X-Error-Code", "GatedRepo")],
        &["gated", "accept its terms", "HF_TOKEN"],
    );
    check(
        "HEAD",
        403,
        &[("X-Error-Code", "GatedRepo")],
        &["gated", "HF_TOKEN"],
    );
    check(
        "HEAD",
        404,
        &[("X-Error-Code", "EntryNotFound")],
        &["org/tiny has no file"],
    );
    let message = &[("X-Error-Message", "not you")];
    check("HEAD", 403, message, &["403", "not you", "HF_TOKEN"]);
    check("HEAD", 418, &[], &["418"]);

    hub.fail(
        usize::MAX,
        "HEAD",
        BadResponse::Status(403, &[("X-Error-Code", "GatedRepo")]),
    );
    let output = user
        .command(&["pull", "org/tiny"])
        .env("HF_TOKEN", TOKEN)
        .output()
        .expect("the binary starts");
    let message = text(&output.stderr);
    assert!(
        message.contains("no access yet") && !message.contains(TOKEN),
        "{message}"
    );
    let output = user
        .command(&["pull", "org/tiny"])
        .env("HF_TOKEN", "two words")
        .output()
        .expect("the binary starts");
    let message = text(&output.stderr);
    assert!(
        message.contains("HF_TOKEN") && !message.contains("two words"),
        "{message}"
    );
}

#[test]
fn a_busy_hub_is_asked_again_within_bounds() {
    let hub = tiny();
    let user = User::of(&hub);
    const SOON: &[(&str, &str)] = &[("Retry-After", "0")];
    hub.fail(2, "/api/", BadResponse::Status(429, SOON));
    hub.fail(1, "HEAD", BadResponse::Status(503, SOON));
    hub.fail(1, "GET cdn", BadResponse::Status(502, SOON));
    user.pull("org/tiny");
    assert_eq!(count(&hub.lines(), "/api/"), 3);

    let user = User::of(&hub);
    hub.fail(usize::MAX, "/api/", BadResponse::Status(429, SOON));
    user.refusal(&["pull", "org/tiny"], &["too many requests", "429"]);
    assert_eq!(hub.lines().len(), 6, "retries end");
    let hub = tiny();
    let user = User::of(&hub);
    hub.fail(
        1,
        "/api/",
        BadResponse::Status(429, &[("Retry-After", "3600")]),
    );
    user.refusal(&["pull", "org/tiny"], &["retry after 3600 s"]);
    assert_eq!(hub.lines().len(), 1, "nobody is kept waiting for an hour");
}

#[test]
fn the_token_stays_at_the_endpoint() {
    let hub = tiny();
    let user = User::of(&hub);
    // A renamed repository redirects within the endpoint, so the token is sent.
    const HERE: &[(&str, &str)] = &[("Location", "/api/models/org/new/revision/main")];
    hub.fail(1, "/api/models/org/tiny", BadResponse::Status(307, HERE));
    fs::write(user.home.path().join("token"), format!("{TOKEN}\n"))
        .expect("the folder takes files");
    user.pull("org/tiny");
    let requests = hub.requests();
    let renamed = requests
        .iter()
        .find(|request| request.line.contains("/org/new/"))
        .expect("it is followed");
    assert_eq!(
        renamed.authorization,
        Some(format!("Bearer {TOKEN}")),
        "the token file counts"
    );
    // A redirect to another origin is followed without the token. Invalid and endless redirects are refused.
    let other = tiny();
    let away: &'static str = format!("{}/api/models/org/tiny/revision/main", other.endpoint).leak();
    let location: &'static [(&str, &str)] = vec![("Location", away)].leak();
    hub.fail(1, "/api/", BadResponse::Status(302, location));
    user.pull("org/tiny");
    assert_eq!(other.requests()[0].authorization, None);
    hub.fail(
        1,
        "/api/",
        BadResponse::Status(302, &[("Location", "file:///etc/passwd")]),
    );
    user.refusal(
        &["pull", "org/tiny"],
        &["invalid redirect to", "file:///etc/passwd"],
    );
    hub.fail(usize::MAX, "/api/", BadResponse::Status(302, HERE));
    user.refusal(&["pull", "org/tiny"], &["more than 5 redirects"]);
}

#[test]
fn hostile_names_lead_nowhere() {
    for name in ["../evil", "/etc/passwd", "a/../../b", "..\\evil"] {
        let hub = tiny();
        hub.list(name);
        let user = User::of(&hub);
        user.refusal(&["pull", "org/tiny"], &["outside the repository"]);
        assert_eq!(hub.lines().len(), 1);
        assert!(!user.repo().exists(), "{name}");
    }
    for commit in ["../../evil", "main", ""] {
        let hub = tiny();
        hub.set_commit(commit);
        User::of(&hub).refusal(&["pull", "org/tiny"], &["invalid commit hash"]);
    }
    for tag in ["\"../../../evil\"", "\"/etc/passwd\"", "\"short\""] {
        let hub = tiny();
        let headers: &'static [(&str, &str)] =
            vec![("ETag", String::leak(tag.to_owned()) as &str)].leak();
        hub.fail(1, "/config.json", BadResponse::Headers(headers));
        User::of(&hub).refusal(&["pull", "org/tiny"], &["config.json", "no hash"]);
    }
    let hub = tiny();
    hub.fail(
        1,
        "/config.json",
        BadResponse::Headers(&[("X-Repo-Commit", "ffffffffffffffffffffffffffffffffffffffff")]),
    );
    User::of(&hub).refusal(&["pull", "org/tiny"], &["config.json", "another commit"]);
}

#[cfg(unix)]
#[test]
fn links_that_leave_the_cache_are_not_followed() {
    use std::os::unix::fs::symlink;
    let hub = tiny();
    let user = User::of(&hub);
    let outside = tempfile::tempdir().expect("a folder for this test");
    let secret = outside.path().join("secret");
    fs::write(&secret, "{}").expect("the folder takes files");
    let snapshot = user.pull("org/tiny");
    // A file that is loaded if present, although the hub does not list it.
    symlink(&secret, snapshot.join("tokenizer.json")).expect("a link");
    for arguments in [
        &["pull", "org/tiny"][..],
        &["pull", "org/tiny", "--offline"],
    ] {
        user.refusal(arguments, &["tokenizer.json", "link to a place outside"]);
    }
    fs::remove_file(snapshot.join("tokenizer.json")).expect("it is there");
    fs::remove_file(snapshot.join("config.json")).expect("it is there");
    symlink("../../../../secret", snapshot.join("config.json")).expect("a link");
    fs::write(user.home.path().join("secret"), "{}").expect("the folder takes files");
    user.refusal(
        &["pull", "org/tiny", "--offline"],
        &["config.json", "link to a place outside"],
    );
    // Links are not followed for writing either.
    let fresh = User::of(&hub);
    let blobs = fresh.repo().join("blobs");
    fs::create_dir_all(&blobs).expect("the folder is made");
    symlink(
        &secret,
        blobs.join(format!("{}.incomplete", hub.hash("config.json"))),
    )
    .expect("a link");
    fresh.pull("org/tiny");
    assert_eq!(fs::read_to_string(&secret).expect("it is there"), "{}");
    let fresh = User::of(&hub);
    let locks = fresh.home.path().join("hub/.locks/models--org--tiny");
    fs::create_dir_all(&locks).expect("the folder is made");
    let created = outside.path().join("created");
    symlink(
        &created,
        locks.join(format!("{}.lock", hub.hash("config.json"))),
    )
    .expect("a link");
    fresh.refusal(&["pull", "org/tiny"], &[".lock"]);
    assert!(!created.exists(), "no file is created through a link");
    for part in ["blobs", "snapshots", "refs"] {
        let fresh = User::of(&hub);
        fs::create_dir_all(fresh.repo()).expect("the folder is made");
        symlink(outside.path(), fresh.repo().join(part)).expect("a link");
        fresh.refusal(&["pull", "org/tiny"], &[part, "link to a place outside"]);
    }
    assert_eq!(
        fs::read_dir(outside.path()).expect("it lists").count(),
        1,
        "nothing was written outside"
    );
}

#[test]
fn two_pulls_at_once_share_the_work() {
    let hub = tiny();
    let user = User::of(&hub);
    // No bytes are sent before both processes have found that all three files are missing.
    hub.hold(6, "HEAD");
    let pull = || {
        user.command(&["pull", "org/tiny"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    let both = [(); 2].map(|()| pull().expect("the binary starts"));
    for process in both {
        let output = process.wait_with_output().expect("it ends");
        assert_eq!(
            text(&output.stdout).trim_end(),
            user.snapshot().to_string_lossy(),
            "{}",
            text(&output.stderr)
        );
    }
    let lines = hub.lines();
    assert_eq!(count(&lines, "GET cdn"), 1, "{lines:?}");
    assert_eq!(count(&lines, "GET hub /org"), 3, "{lines:?}");
    assert_eq!(user.blobs().len(), 3);
}

#[test]
fn without_the_hub_the_cache_has_to_do() {
    let hub = tiny();
    let mut user = User::of(&hub);
    user.refusal(
        &["pull", "org/tiny", "--offline"],
        &[
            "org/tiny is not in the local cache (--offline)",
            "revision main",
        ],
    );
    for variable in ["HF_HUB_OFFLINE", "FOLIO_OFFLINE"] {
        let output = user
            .command(&["pull", "org/tiny"])
            .env(variable, "1")
            .output()
            .expect("the binary starts");
        assert!(text(&output.stderr).contains("offline"), "{variable}");
    }
    assert!(hub.lines().is_empty());
    user.pull("org/tiny");
    user.refusal(
        &["pull", "org/tiny@v2", "--offline"],
        &["revision v2 is not cached"],
    );
    assert!(
        user.result(&["pull", &format!("org/tiny@{COMMIT}"), "--offline"])
            .ends_with(COMMIT)
    );
    // An unreachable hub does not prevent using a cached model.
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    user.endpoint = format!("http://{}", closed.expect("a port was free"));
    let output = user.run(&["pull", "org/tiny"]);
    assert!(
        output.status.success() && text(&output.stderr).contains("from the local cache"),
        "{}",
        text(&output.stderr)
    );
    user.refusal(
        &["pull", "org/other"],
        &[
            "cannot reach http://127.0.0.1:",
            "not complete in the local cache",
        ],
    );
    user.endpoint = "ftp://hub".to_owned();
    user.refusal(&["pull", "org/tiny"], &["HF_ENDPOINT", "ftp://hub"]);
    // The cache may be in another folder.
    let elsewhere = user.home.path().join("elsewhere");
    fs::rename(user.home.path().join("hub"), &elsewhere).expect("it moves");
    let mut command = user.command(&["list", "--json"]);
    let output = command
        .env("HF_ENDPOINT", "")
        .env("HF_HUB_CACHE", &elsewhere)
        .output()
        .expect("the binary starts");
    assert!(
        text(&output.stdout).contains("org/tiny"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_list_tells_formats_and_what_is_broken() {
    let hub = tiny();
    let user = User::of(&hub);
    assert_eq!(user.result(&["list"]), "");
    user.pull("org/tiny");
    let list = || -> Value {
        serde_json::from_str(&user.result(&["list", "--json"])).expect("one JSON object")
    };
    let bytes: usize = ["config.json", "generation_config.json", "model.safetensors"]
        .map(|name| golden(name).len())
        .iter()
        .sum();
    let whole = json!({"repo": "org/tiny", "revisions": ["main"], "commit": COMMIT, "bytes": bytes,
                       "formats": ["safetensors bf16"], "problems": []});
    assert_eq!(list()["models"], json!([whole]));
    let line = user.result(&["list"]);
    assert!(
        line.starts_with("org/tiny  main (01234567)  187") && line.ends_with("safetensors bf16"),
        "{line}"
    );

    let folder = |name: &str| {
        user.home
            .path()
            .join("hub")
            .join(name)
            .join("snapshots")
            .join(COMMIT)
    };
    let put = |repo: &str, name: &str, bytes: &[u8]| {
        fs::create_dir_all(folder(repo)).expect("the folder is made");
        fs::write(folder(repo).join(name), bytes).expect("the folder takes files");
    };
    put("models--org--a-GGUF", "a-Q4_K_M.gguf", b"GGUF");
    put("models--org--a-GGUF", "a-Q8_0-00002-of-00002.gguf", b"GGUF");
    put("models--org--b", "config.json", b"{}");
    put("datasets--org--c", "data.csv", b"");
    fs::create_dir_all(user.home.path().join("hub/models--org--empty"))
        .expect("the folder is made");
    let partial = user.repo().join("blobs").join("ab.incomplete");
    fs::write(partial, [0; 2048]).expect("the folder takes files");
    fs::remove_file(user.repo().join("blobs").join(hub.hash("config.json"))).expect("it is there");
    let found = list();
    let models = found["models"].as_array().expect("a list");
    let names: Vec<&str> = models
        .iter()
        .filter_map(|model| model["repo"].as_str())
        .collect();
    assert_eq!(names, ["org/a-GGUF", "org/b", "org/empty", "org/tiny"]);
    assert_eq!(models[0]["formats"], json!(["gguf Q4_K_M", "gguf Q8_0"]));
    let problem = |index: usize, part: &str| {
        let text = models[index]["problems"].to_string();
        assert!(text.contains(part), "{part:?} is not in {text}");
    };
    problem(0, "parts of a-Q8_0 are missing");
    problem(1, "no safetensors");
    problem(2, "no files");
    problem(3, "config.json is missing");
    problem(3, "incomplete downloads: 1 (2.00 KiB so far)");
    assert!(user.result(&["list"]).contains("problem: "));
}
