//! Tests of `server/parameters/turns.rs`.

use super::*;

#[test]
fn text_of_one_role_is_one_turn_and_instructions_come_first() {
    let mut turns = Turns::default();
    turns.system("Be brief.");
    turns.system("Be kind.");
    turns.user("Hello!");
    turns.system("It is noon.");
    turns.reasoning("A greeting.");
    turns.assistant("Hi.");
    turns.call("1", "look", &json!({"at": "a"}));
    assert!(!turns.ends_with_text());
    turns.result("1", vec![Piece::Text("A fox.".to_owned())]);
    turns.assistant("I see");
    assert!(turns.ends_with_text());
    let call = json!({"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "a"}}});
    let expected = json!([
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Hello!\nIt is noon."},
        {"role": "assistant", "reasoning_content": "A greeting.", "content": "Hi.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "A fox."},
        {"role": "assistant", "content": "I see"},
    ]);
    assert_eq!(*turns.messages(), expected);
}

#[test]
fn images_stand_where_they_came() {
    let image = |name: &str| GivenImage {
        name: name.to_owned(),
        file: Vec::new(),
    };
    let mut turns = Turns::default();
    turns.user("What is this?");
    turns.image(image("a"));
    turns.user("And this?");
    turns.image(image("b"));
    turns.assistant("A fox.");
    turns.image(image("c"));
    let messages = turns.messages();
    let text = |text: &str| json!({"type": "text", "text": text});
    let shown = json!({"type": "image"});
    let expected = json!([
        {"role": "user", "content": [text("What is this?"), shown, text("And this?"), shown]},
        {"role": "assistant", "content": "A fox."},
        {"role": "user", "content": [shown]},
    ]);
    assert_eq!(*messages, expected);
    let names = messages.images().iter().map(|image| image.name.as_str());
    assert!(names.eq(["a", "b", "c"]));
}
