//! Any bytes given as an image must be decoded within the limits and become tiles, or be refused with an error.
#![no_main]

use folio::image::{ImageProcessor, Picture, PictureLimits};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use std::sync::LazyLock;

const LIMITS: PictureLimits = PictureLimits {
    bytes: 1 << 20,
    side: 2048,
    pixels: 1 << 18,
};

/// Of an Idefics 3 with small tiles.
static PROCESSOR: LazyLock<ImageProcessor> = LazyLock::new(|| {
    let config = json!({
        "model_type": "idefics3", "scale_factor": 2, "vision_config": {"image_size": 16, "patch_size": 4},
    });
    let file = json!({"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}});
    let processor = ImageProcessor::read(&config, [Some(&file), None]);
    processor.expect("it is known").expect("it reads images")
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(picture) = Picture::decode(bytes, &LIMITS) else {
        return;
    };
    assert!(picture.height().max(picture.width()) <= LIMITS.side);
    let Ok(processed) = PROCESSOR.process(&picture) else {
        return;
    };
    let rows: u32 = processed.tiles.iter().map(|tile| tile.rows).sum();
    assert_eq!(processed.text.matches("<image>").count(), rows as usize);
});
