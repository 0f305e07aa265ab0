//! A tokenizer's vocabulary as a byte trie.

use super::Tokenizer;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::sync::Arc;

/// Texts that must survive encoding and decoding. Otherwise no tokens are forced, because some tokenizers put a space
/// before a text.
const PROBES: [&str; 4] = [
    "{\"name\": \"a b\", \"list\": [1, 2]}",
    "true",
    " x",
    "\n\n",
];

struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    is_exact: bool,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let ids = self.tokenizer.encode_literal(text, false).ok();
            let spelled = ids.filter(|ids| spells(&self.tokenizer, ids, text));
            spelled.unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_exact
    }
}

fn spells(tokenizer: &Tokenizer, ids: &[u32], text: &str) -> bool {
    let bytes = ids.iter().scan(None, |previous: &mut Option<u32>, &id| {
        Some(tokenizer.token_bytes(id, previous.replace(id)))
    });
    bytes.flatten().eq(text.bytes())
}

/// The environment of the first `vocab` ids. Ids unknown to the tokenizer occur in no grammar. Special tokens can be
/// named by number or name, and are never part of text.
pub(super) fn environment(tokenizer: Arc<Tokenizer>, vocab: u32, end_ids: &[u32]) -> TokEnv {
    let words: Vec<_> = (0..vocab)
        .map(|id| {
            let bytes = tokenizer.token_bytes(id, None);
            if !tokenizer.is_special(id) || bytes.is_empty() {
                return bytes;
            }
            [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat()
        })
        .collect();
    let end_ids: Vec<_> = end_ids.iter().copied().filter(|&id| id < vocab).collect();
    let end = end_ids
        .first()
        .copied()
        .unwrap_or(llguidance::toktrie::INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(vocab, end), &words);
    if !end_ids.is_empty() {
        trie = trie.with_eos_tokens(&end_ids);
    }
    let is_exact = PROBES.iter().all(|text| {
        tokenizer
            .encode_literal(text, false)
            .is_ok_and(|ids| spells(&tokenizer, &ids, text))
    });
    Arc::new(Vocabulary {
        trie,
        is_exact,
        tokenizer,
    })
}
