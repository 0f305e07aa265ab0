//! Tests of `text/bpe.rs`.

use super::*;
use proptest::prelude::*;
use tokenizers::models::bpe::{BpeBuilder, Vocab};

const BYTES: [&str; 3] = ["<0xC3>", "<0xA9>", "<0x7A>"];

/// Ids and places of the tokens, or that there is an error.
fn tokens(model: &impl Model, text: &str) -> Option<Vec<(u32, (usize, usize))>> {
    let tokens = model.tokenize(text).ok()?;
    Some(
        tokens
            .into_iter()
            .map(|token| (token.id, token.offsets))
            .collect(),
    )
}

/// A vocabulary of the letters a to d, of some bytes, and of what `pairs` of tokens become.
fn grown(pairs: &[(usize, usize)]) -> (Vec<String>, Vec<(String, String)>) {
    let mut texts: Vec<String> = ["a", "b", "c", "d", "?"]
        .into_iter()
        .chain(BYTES)
        .map(String::from)
        .collect();
    let mut merges = Vec::new();
    for &(left, right) in pairs {
        let (left, right) = (
            texts[left % texts.len()].clone(),
            texts[right % texts.len()].clone(),
        );
        let both = format!("{left}{right}");
        if both.len() <= 12 {
            if !texts.contains(&both) {
                texts.push(both);
            }
            merges.push((left, right));
        }
    }
    (texts, merges)
}

proptest! {
    /// The library's model is the reference.
    #[test]
    fn words_are_encoded_as_by_the_library(
        pairs in proptest::collection::vec((0_usize..40, 0_usize..40), 0..30),
        spread in 1_u32..4,
        known in any::<bool>(),
        flags in any::<[bool; 4]>(),
        words in proptest::collection::vec("[abcdzé?]{0,14}", 1..8),
    ) {
        let [has_unknown, fuse_unknown, byte_fallback, ignore_merges] = flags;
        let (texts, merges) = grown(&pairs);
        let unknown = has_unknown.then(|| if known { "?" } else { "nowhere" }.to_string());
        let ids: Vec<(String, u32)> = texts.iter().cloned().zip((0..).map(|id| id * spread)).collect();
        let builder = BpeBuilder::new().vocab_and_merges(ids.iter().cloned().collect::<Vocab>(), merges.clone());
        let builder = builder.fuse_unk(fuse_unknown).byte_fallback(byte_fallback).ignore_merges(ignore_merges);
        let builder = if let Some(name) = &unknown { builder.unk_token(name.clone()) } else { builder };
        let expected = builder.build().expect("its merges are tokens");
        let vocabulary = Vocabulary::new(ids.iter().map(|(text, id)| (text.as_str(), *id))).expect("ids differ");
        let id = |text: &str| vocabulary.id(text).expect("it is a token");
        let merges: Vec<_> = (0..).zip(&merges).map(|(rank, (left, right))| {
            [id(left), id(right), id(&format!("{left}{right}")), rank]
        }).collect();
        let options = BpeOptions { unknown, fuse_unknown, byte_fallback, ignore_merges };
        let found = TokenModel::Bpe(Bpe::new(vocabulary, &merges, options));
        for word in &words {
            prop_assert_eq!(tokens(&found, word), tokens(&expected, word), "{}", word);
        }
        prop_assert_eq!(found.get_vocab(), Model::get_vocab(&expected));
        prop_assert_eq!(found.get_vocab_size(), ids.len());
    }
}

#[test]
fn the_last_id_of_a_text_counts_and_ids_are_not_shared() {
    let new = |tokens: &[(&'static str, u32)]| Vocabulary::new(tokens.iter().copied());
    let vocabulary = new(&[("a", 0), ("b", 1), ("a", 2), ("", 3)]).expect("ids differ");
    assert_eq!(
        ["a", "b", "", "c"].map(|text| vocabulary.id(text)),
        [Some(2), Some(1), Some(3), None]
    );
    assert_eq!(
        [0, 1, 2, 3, 4].map(|id| vocabulary.text(id)),
        [None, Some("b"), Some("a"), Some(""), None]
    );
    assert_eq!(vocabulary.len(), 3);
    assert!(
        new(&[("a", 0), ("b", 0)]).is_none(),
        "two texts have one id"
    );
    assert!(
        new(&[("a", 0), ("b", 8)]).is_none(),
        "few tokens, far apart"
    );
    assert!(
        new(&[("a", 0), ("b", u32::MAX)]).is_none(),
        "few tokens, far apart"
    );
    assert_eq!(new(&[]).expect("it is empty").len(), 0);
}
