//! Images: pixels and tokens, compared with those of transformers.

use super::packed;
use folio::image::{ImageProcessor, Picture, PictureLimits, Processed, Tile};
use folio::text::{TextFolder, TextModel};
use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

/// Levels by which a JPEG's pixels differ at most from libjpeg's.
const JPEG_LEVELS: u8 = 3;

const FAMILIES: [&str; 2] = ["idefics3", "smolvlm"];

fn folder(family: &str) -> PathBuf {
    packed::model("vision").join(family)
}

fn json(file: &Path) -> Value {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&bytes).expect("the file is JSON")
}

/// The processor of a family.
fn processor(family: &str) -> ImageProcessor {
    let files = ImageProcessor::FILES.map(|name| json(&folder(family).join(name)));
    let [older, newer] = &files;
    let config = json(&folder(family).join("config.json"));
    let processor = ImageProcessor::read(&config, [Some(older), Some(newer)]);
    processor
        .expect("the files are read")
        .expect("the model reads images")
}

/// An image of the goldens as it was decoded there.
fn picture(name: &str) -> Picture {
    let bytes = std::fs::read(folder("images").join("decoded.safetensors")).expect("it is read");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensor = tensors.tensor(name).expect("the image is there");
    let [height, width, 3] = tensor.shape()[..] else {
        panic!("{name}: rows, columns and channels")
    };
    Picture::new(height as u32, width as u32, tensor.data().to_vec()).expect("a picture")
}

/// The pixels of a tile, `[channel][row][column]`, from its patches.
fn pixels(tile: &Tile) -> Vec<f32> {
    let count = tile.positions.len();
    let across = count.isqrt();
    let patch = (tile.columns as usize / 3).isqrt();
    let side = across * patch;
    let mut pixels = vec![0.0; 3 * side * side];
    let patches = tile.patches.chunks_exact(tile.columns as usize);
    for (numbers, &position) in patches.zip(&*tile.positions) {
        let (top, left) = (
            position as usize / across * patch,
            position as usize % across * patch,
        );
        for (index, number) in numbers.iter().take(3 * patch * patch).enumerate() {
            let (channel, within) = (index / (patch * patch), index % (patch * patch));
            let (row, column) = (top + within / patch, left + within % patch);
            pixels[(channel * side + row) * side + column] = *number;
        }
    }
    pixels
}

#[test]
fn files_are_decoded_as_by_pillow() {
    for name in ["small.png", "alpha.png", "wide.png", "tall.jpg"] {
        let bytes = std::fs::read(folder("images").join(name)).expect("the image is read");
        let found = Picture::decode(&bytes, &PictureLimits::default()).expect("it is decoded");
        let expected = picture(name);
        let size = |picture: &Picture| (picture.height(), picture.width());
        assert_eq!(size(&found), size(&expected), "{name}");
        let pairs = found.rgb().iter().zip(expected.rgb());
        let levels = pairs
            .map(|(found, expected)| found.abs_diff(*expected))
            .max();
        println!("{name}: {levels:?} levels");
        let most = if name.ends_with("jpg") {
            JPEG_LEVELS
        } else {
            0
        };
        assert!(levels <= Some(most), "{name}: {levels:?} levels");
    }
}

#[test]
fn pixels_are_those_of_transformers_bit_for_bit() {
    for family in FAMILIES {
        let (processor, golden) = (processor(family), json(&folder(family).join("golden.json")));
        for (name, image) in golden["images"].as_object().expect("images by name") {
            let Processed { tiles, .. } =
                processor.process(&picture(name)).expect("it is processed");
            let hashes = image["torchvision"]["sha256_f32"]
                .as_array()
                .expect("hashes");
            assert_eq!(tiles.len(), hashes.len(), "{family}, {name}");
            for (index, (tile, hash)) in tiles.iter().zip(hashes).enumerate() {
                let bytes: Vec<u8> = pixels(tile).iter().flat_map(|x| x.to_le_bytes()).collect();
                let found: String = Sha256::digest(bytes)
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                assert_eq!(
                    Some(&*found),
                    hash.as_str(),
                    "{family}, {name}, tile {index}"
                );
            }
        }
    }
}

#[test]
fn an_image_becomes_the_tokens_of_transformers() {
    for family in FAMILIES {
        let mut files = TextFolder::default();
        for name in TextFolder::NAMES {
            if let Ok(bytes) = std::fs::read(folder(family).join(name)) {
                files.insert(name, bytes);
            }
        }
        let text = TextModel::from_folder(&files, None).expect("the text files are read");
        let tokenizer = text.tokenizer.expect("there is a tokenizer");
        let processor = processor(family);
        let golden = json(&folder(family).join("golden.json"));
        for case in golden["cases"].as_array().expect("a list of cases") {
            let mut images = case["images"].as_array().expect("names").iter();
            let words = ids(&case["prompt"]).into_iter().map(|id| {
                if id != processor.placeholder() {
                    return format!("t{id:03}");
                }
                let name = images
                    .next()
                    .and_then(Value::as_str)
                    .expect("a marker has an image");
                let processed = processor.process(&picture(name)).expect("it is processed");
                let rows: u32 = processed.tiles.iter().map(|tile| tile.rows).sum();
                assert_eq!(
                    processed.text.matches(processor.marker()).count(),
                    rows as usize
                );
                processed.text
            });
            let prompt = words.collect::<Vec<_>>().join(" ");
            let found = tokenizer
                .encode(&prompt, true)
                .expect("the text is encoded");
            assert_eq!(found, ids(&case["expanded"]), "{family}, {}", case["name"]);
        }
    }
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids").iter();
    list.map(|id| id.as_u64().expect("an id") as u32).collect()
}
