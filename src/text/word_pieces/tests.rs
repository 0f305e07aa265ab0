//! Tests of `text/word_pieces.rs`.

use super::*;
use crate::text::{TextFolder, TextModel};

const PIECES: &str =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nHello\nwor\n##ld\nmu\n##de\nmü\n!\n";

fn ids(config: &Value, text: &str) -> Result<Vec<u32>, String> {
    let mut folder = TextFolder::default();
    folder.insert(VOCAB, PIECES.as_bytes().to_vec());
    folder.insert("tokenizer_config.json", config.to_string().into_bytes());
    let model = TextModel::from_folder(&folder, None).map_err(|error| error.to_string())?;
    let tokenizer = model.tokenizer.expect("it has a tokenizer");
    tokenizer
        .encode(text, true)
        .map_err(|error| error.to_string())
}

#[test]
fn a_list_of_pieces_is_a_tokenizer() {
    let usual = json!({"tokenizer_class": "BertTokenizer"});
    assert_eq!(ids(&usual, "Hello  WORLD!"), Ok(vec![2, 5, 7, 8, 12, 3]));
    assert_eq!(ids(&usual, "müde [MASK]"), Ok(vec![2, 9, 10, 4, 3]));
    assert_eq!(ids(&usual, "zebra"), Ok(vec![2, 1, 3]));
    let cased = json!({"do_lower_case": false});
    assert_eq!(
        ids(&cased, "Hello hello müde"),
        Ok(vec![2, 6, 5, 11, 10, 3])
    );
    let accents = json!({"strip_accents": false});
    assert_eq!(ids(&accents, "MÜDE"), Ok(vec![2, 11, 10, 3]));
}

#[test]
fn what_is_no_tokenizer_of_berts_is_refused() {
    let table = [
        (
            json!({"tokenizer_class": "MPNetTokenizer"}),
            "MPNetTokenizer",
        ),
        (json!({"cls_token": "<s>"}), "cls_token"),
        (json!({"do_lower_case": "yes"}), "do_lower_case"),
    ];
    for (config, word) in table {
        let error = ids(&config, "hello").expect_err("it is refused");
        assert!(error.contains(word), "{error}");
    }
}
