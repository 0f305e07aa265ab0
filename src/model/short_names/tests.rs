//! The table of short names.

use super::ShortName;
use crate::model::repository::is_plain;
use std::collections::BTreeSet;

#[test]
fn names_are_found_whole_by_family_and_with_ollama_s_tag() {
    let find = |name| ShortName::find(name).map(|row| row.name);
    assert_eq!(find("qwen3:0.6b"), Some("qwen3:0.6b"));
    assert_eq!(find("qwen3"), Some("qwen3:8b"));
    assert_eq!(find("qwen3:latest"), Some("qwen3:8b"));
    assert_eq!(find("llama3.2"), Some("llama3.2:3b"));
    for unknown in ["qwen", "qwen3:7b", "", ":latest", "Qwen/Qwen3-8B-GGUF"] {
        assert_eq!(find(unknown), None, "{unknown}");
    }
}

#[test]
fn every_row_has_a_name_of_its_own_a_repository_and_a_size_that_can_be_planned() {
    let names: BTreeSet<_> = ShortName::ALL.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), ShortName::ALL.len());
    for row in &ShortName::ALL {
        let (repository, quantization) = match row.repository.split_once(':') {
            Some((repository, quantization)) => (repository, Some(quantization)),
            None => (row.repository, None),
        };
        assert_eq!(repository.split('/').count(), 2, "{}", row.name);
        assert!(repository.split('/').all(is_plain), "{}", row.name);
        assert!(quantization.is_none_or(is_plain), "{}", row.name);
        let model = row.stand_in().expect("its shape is one");
        assert_eq!(model.is_some(), !row.shape.is_empty(), "{}", row.name);
    }
}
