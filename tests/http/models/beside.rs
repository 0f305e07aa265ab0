//! Several models beside each other: a lost device, many clients, an end while one loads.

use super::*;

#[test]
fn a_lost_device_of_one_model_does_not_concern_the_others() {
    let log = Arc::<Log>::default();
    let sources = vec![
        source(&log, "a", 1, Ok("dead@5".into())),
        source(&log, "b", 1, Ok(say(&["I am b."]))),
    ];
    let server = Several::of(
        sources,
        &FleetOptions {
            places: vec![None],
            load_timeout: None,
        },
        log,
    );
    let long = with(&of("a"), &json!({"max_tokens": 2000, "ignore_eos": true}));
    assert_eq!(server.ask("b"), "I am b.");
    let lost = server.post(CHAT, &long);
    assert_eq!(
        (lost.status.as_u16(), lost.json()["error"]["code"].as_str()),
        (503, Some("device_lost"))
    );
    assert_eq!(
        (server.ask("b"), server.get("/health").status.as_u16()),
        ("I am b.".into(), 200)
    );
    wait("it is told", || {
        server.get("/v1/models/a").json()["status"]["failed"] == true
    });
    assert_eq!(
        server
            .post(CHAT, &with(&of("a"), &json!({"max_tokens": 2})))
            .status,
        200,
        "it is loaded again"
    );
    assert_eq!(server.log.take(), ["load b", "load a", "end a", "load a"]);
}

#[test]
fn many_clients_of_random_models_are_all_answered() {
    let server = Several::start();
    std::thread::scope(|scope| {
        for client in 0..32_usize {
            let server = &server;
            scope.spawn(move || {
                for turn in 0..3 {
                    let model = ["a", "b", "c"][(client * 7 + turn * 5 + client / 3) % 3];
                    assert_eq!(
                        server.ask(model),
                        format!("I am {model}."),
                        "client {client}, turn {turn}"
                    );
                }
            });
        }
    });
    let (mut loaded, mut most) = (0, 0);
    for line in server.log.take() {
        loaded = if line.starts_with("load") {
            loaded + 1
        } else {
            loaded - 1
        };
        most = most.max(loaded);
    }
    assert!(most <= 2, "{most} models of 4 bytes in 10");
    assert_eq!(server.state.active_answers(), 0);
}

#[test]
fn a_server_that_ends_while_a_model_loads_ends_its_requests() {
    let server = Several::start();
    assert_eq!(server.ask("a"), "I am a.");
    server.log.shut(true);
    let open = server.open(&with(&of("b"), &json!({"stream": true})));
    server.wait_for(["loaded", "loading", "unloaded"]);
    server.state.begin_closing();
    assert_eq!(server.get("/health").status, 503);
    server.state.drain();
    let text = open.rest();
    assert!(
        text.contains("server_shutting_down") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    assert_eq!(
        server.post(CHAT, &of("c")).json()["error"]["code"],
        "server_shutting_down"
    );
    server.log.shut(false);
    server.state.close();
    // Each model is unloaded on its own thread, in no particular order.
    let mut log = server.log.take();
    log.sort_unstable();
    assert_eq!(log, ["end a", "end b", "load a", "load b"]);
}
