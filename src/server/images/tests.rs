//! Tests of the places of images in a prompt.

use super::{GivenImage, ImageReader, ReadImages};
use crate::engine::request::{ImageRoom, Tile};
use crate::image::ImageProcessor;
use crate::server::wire::error::ApiError;
use crate::server::wire::memory::RequestMemory;
use serde_json::json;
use std::sync::Arc;

/// Images whose parts have these numbers of rows, for which token 9 stands.
fn images(rows: &[u32]) -> ReadImages {
    in_runs(rows, u32::MAX)
}

/// The same, with another token before each so many of a part's.
fn in_runs(rows: &[u32], run: u32) -> ReadImages {
    let tile = |&rows: &u32| Tile {
        start: 0,
        rows,
        run,
        digest: [0; 32],
        patches: Arc::default(),
        positions: Arc::default(),
        across: 1,
    };
    ReadImages {
        marker: "<image>",
        texts: Vec::new(),
        placeholder: 9,
        tiles: rows.iter().map(tile).collect(),
        charge: RequestMemory::new(0).request(),
    }
}

#[test]
fn every_row_has_a_placeholder_and_every_placeholder_a_row() {
    let starts = |rows: &[u32], prompt: &[u32]| {
        let placed = images(rows).placed(prompt)?;
        Some(
            placed
                .tiles
                .iter()
                .map(|tile| tile.start)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(starts(&[2, 1], &[1, 9, 9, 3, 9, 4]), Some(vec![1, 4]));
    assert_eq!(starts(&[2, 1], &[9, 9, 9]), Some(vec![0, 2]));
    assert_eq!(starts(&[2, 1], &[9, 1, 9, 9]), None, "a part has a gap");
    assert_eq!(starts(&[2], &[9, 9, 9]), None, "one placeholder too many");
    assert_eq!(starts(&[2, 1], &[9, 9]), None, "a row has none");
    assert_eq!(starts(&[], &[1, 2]), Some(Vec::new()));
}

#[test]
fn runs_of_a_part_have_one_token_between() {
    let is_placed = |prompt: &[u32]| in_runs(&[4], 2).placed(prompt).is_some();
    assert!(is_placed(&[1, 9, 9, 7, 9, 9, 8]));
    assert!(!is_placed(&[1, 9, 9, 9, 9, 8]), "no token between");
    assert!(!is_placed(&[1, 9, 9, 7, 7, 9, 9]), "two tokens between");
    assert!(!is_placed(&[9, 7, 9, 9, 9]), "a run is shorter");
}

/// What becomes of a picture of 28 × 56 pixels, in 8 tokens of Mistral 3, with this room.
fn read(rows: u32, patches: u32) -> Result<ReadImages, ApiError> {
    let config = json!({
        "model_type": "mistral3", "vision_config": {"image_size": 56, "patch_size": 7},
    });
    let file = json!({"size": {"longest_edge": 56}});
    let processor = ImageProcessor::read(&config, [Some(&file), None]).expect("it is known");
    let mut file = std::io::Cursor::new(Vec::new());
    let picture = ::image::RgbImage::new(56, 28);
    picture
        .write_to(&mut file, ::image::ImageFormat::Png)
        .expect("it is written");
    let given = GivenImage {
        name: "messages[0].content[1]".into(),
        file: file.into_inner(),
    };
    let room = ImageRoom {
        rows,
        columns: 152,
        patches,
        merged: 4,
    };
    let charge = RequestMemory::new(1 << 20).request();
    ImageReader::new(processor.expect("it reads images")).read(&[given], room, charge)
}

#[test]
fn an_image_beyond_what_is_held_or_computed_is_refused_with_both_numbers() {
    assert!(read(8, 32).is_ok());
    let refused = |rows: u32, patches: u32| {
        let error = read(rows, patches).err().expect("it is refused");
        format!("{error:?}")
    };
    let message = refused(7, 32);
    assert!(message.contains("take 8 tokens; at most 7"), "{message}");
    let message = refused(8, 28);
    assert!(
        message.contains("takes 8 tokens; this device computes at most 7"),
        "{message}"
    );
    assert!(message.contains("messages[0].content[1]"), "{message}");
}
