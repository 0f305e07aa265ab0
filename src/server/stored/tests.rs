//! Tests of `server/stored/mod.rs`.

use super::*;
use serde_json::json;

fn response(text: &str, previous: Option<&str>) -> Stored {
    let response = json!({"output": [{"id": format!("out-{text}"), "text": text}]});
    Stored {
        response,
        input: vec![json!({"text": format!("{text}?")})],
        previous: previous.map(str::to_owned),
    }
}

#[test]
fn a_chain_is_read_oldest_first_and_only_by_its_client() {
    let store = Responses::new(10_000);
    let (own, other) = (0, 1);
    store.keep(own, "1", &response("a", None));
    store.keep(own, "2", &response("b", Some("1")));
    let chain = store.chain(own, "2").expect("both are stored");
    let items = chain.items().expect("they can be read");
    let texts: Vec<_> = items
        .iter()
        .map(|item| item["text"].as_str().expect("a text"))
        .collect();
    assert_eq!(texts, ["a?", "a", "b?", "b"]);
    assert!(
        store.chain(other, "2").is_none()
            && store.get(other, "1").is_none()
            && !store.delete(other, "1")
    );
    let item = store.item(own, "out-a").expect("it is stored");
    assert_eq!(item.value().expect("it can be read")["text"], "a");
    assert!(store.item(other, "out-a").is_none());
    assert!(store.delete(own, "1") && !store.delete(own, "1"));
    assert!(store.chain(own, "2").is_none(), "its beginning is gone");
}

#[test]
fn a_folder_outlives_its_server_and_its_keys_stay_apart() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let (first, both) = (["one".to_owned()], ["two".to_owned(), "one".to_owned()]);
    let store = Responses::with_folder(10_000, folder.path(), &first);
    store.keep(0, "1", &response("a", None));
    store.keep(0, "2", &response("b", Some("1")));
    store.keep(0, "3", &response("c", None));
    assert!(store.delete(0, "3"));
    std::fs::write(folder.path().join("4.json"), "no JSON").expect("the folder takes files");
    let again = Responses::with_folder(10_000, folder.path(), &both);
    let texts = |client| Some(again.chain(client, "2")?.items()?.len());
    assert_eq!(
        (texts(0), texts(1)),
        (None, Some(4)),
        "the key has another index now"
    );
    assert!(again.get(1, "3").is_none() && again.get(1, "4").is_none());
    let small = Responses::with_folder(
        Entry::new(0, "1", &response("a", None)).bytes + 10,
        folder.path(),
        &first,
    );
    assert!(
        small.get(0, "1").is_none() && small.get(0, "2").is_some(),
        "the oldest makes room"
    );
    assert!(!folder.path().join("1.json").exists() && folder.path().join("2.json").exists());
    assert!(
        Responses::with_folder(10, folder.path(), &first)
            .get(0, "2")
            .is_none(),
        "it is larger than the store"
    );
    assert!(
        Responses::with_folder(10_000, folder.path(), &[])
            .get(0, "2")
            .is_none(),
        "no key is another client"
    );
}

#[test]
fn what_was_not_used_for_the_longest_time_makes_room() {
    let size = Entry::new(0, "0", &response("0", None)).bytes;
    let store = Responses::new(3 * size);
    let own = 0;
    (0..3).for_each(|index| {
        store.keep(own, &index.to_string(), &response(&index.to_string(), None));
    });
    assert!(store.get(own, "0").is_some());
    store.keep(own, "3", &response("3", None));
    let left: Vec<_> = (0..4)
        .filter(|index| store.get(own, &index.to_string()).is_some())
        .collect();
    assert!(
        left.contains(&0) && left.contains(&3) && !left.contains(&1),
        "{left:?}"
    );
    store.keep(own, "large", &response(&"x".repeat(3 * size), None));
    assert!(store.get(own, "large").is_none() && store.get(own, "3").is_some());
    let kept = store.kept();
    assert_eq!(
        kept.bytes,
        kept.entries
            .values()
            .map(|entry| entry.bytes)
            .sum::<usize>()
    );
    assert_eq!(kept.uses.len(), kept.entries.len());
    let items = kept
        .entries
        .values()
        .map(|entry| entry.items.len())
        .sum::<usize>();
    assert_eq!(
        kept.items.len(),
        items,
        "items of responses that are gone are gone"
    );
}
