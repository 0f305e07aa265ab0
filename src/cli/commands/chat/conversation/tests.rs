//! Tests of `cli/commands/chat/conversation.rs`.

use super::*;

#[test]
fn a_system_message_is_the_first_and_outlives_a_reset() {
    let mut conversation = Conversation::new(Some("Be brief."));
    conversation
        .messages
        .push(json!({"role": "user", "content": "Hello"}));
    conversation.set_system(Some("Be kind."));
    assert_eq!(
        conversation.messages[0],
        json!({"role": "system", "content": "Be kind."})
    );
    assert_eq!(conversation.messages.len(), 2);
    conversation.reset();
    assert_eq!(conversation.messages.len(), 1);
    conversation.set_system(None);
    assert!(conversation.messages.is_empty());
}

#[test]
fn a_files_fence_is_longer_than_its_own() {
    assert_eq!(attached("a.txt", "one\n"), "File a.txt:\n```\none\n```\n\n");
    assert_eq!(
        attached("b.md", "````\n`x`"),
        "File b.md:\n`````\n````\n`x`\n`````\n\n"
    );
}

#[test]
fn files_are_read_as_they_were_written_and_names_stay_in_their_folder() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = folder
        .path()
        .join("talk.json")
        .to_string_lossy()
        .into_owned();
    let mut conversation = Conversation::new(Some("Be brief."));
    conversation.fields.insert("seed".into(), json!(7));
    conversation.save(&path).expect("the folder takes files");
    let read = Conversation::load(&path).expect("it was written");
    assert_eq!(
        (read.messages, read.fields),
        (conversation.messages, conversation.fields)
    );
    std::fs::write(&path, "{}").expect("the folder takes files");
    assert!(
        format!(
            "{:#}",
            Conversation::load(&path).expect_err("it is no conversation")
        )
        .contains("talk.json")
    );
    for wrong in ["../up", ".hidden", "a/b"] {
        assert!(path_of(wrong).is_err(), "{wrong}");
    }
}
