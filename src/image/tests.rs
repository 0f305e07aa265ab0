//! Tests of decoding, resizing and cutting images.

use super::fields::Fields;
use super::idefics3::{Tiling, text};
use super::patches::Grid;
use super::pixtral::{self, Sizing};
use super::{Filter, ImageError, ImageProcessor, Picture, PictureLimits};
use ::image::codecs::gif::GifEncoder;
use ::image::{DynamicImage, Frame, ImageFormat, Luma, LumaA, Rgba, RgbaImage};
use serde_json::{Value, json};
use std::io::Cursor;

const LIMITS: PictureLimits = PictureLimits {
    bytes: 1 << 20,
    side: 1000,
    pixels: 100_000,
};

fn file(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image
        .write_to(&mut bytes, format)
        .expect("the image is encoded");
    bytes.into_inner()
}

fn pixels(image: &DynamicImage) -> Vec<u8> {
    let picture = Picture::decode(&file(image, ImageFormat::Png), &LIMITS);
    picture.expect("the image is decoded").rgb().to_vec()
}

#[test]
fn transparency_is_composited_onto_white_and_16_bits_keep_their_high_8() {
    let image = RgbaImage::from_fn(3, 1, |x, _| Rgba([0, 100, 255, [0, 128, 255][x as usize]]));
    assert_eq!(
        pixels(&image.into()),
        [255, 255, 255, 127, 177, 255, 0, 100, 255]
    );
    let grey = ::image::ImageBuffer::from_pixel(1, 1, LumaA([40_u8, 255]));
    assert_eq!(pixels(&grey.into()), [40, 40, 40]);
    let deep = ::image::ImageBuffer::from_pixel(1, 1, Luma([0x12ff_u16]));
    assert_eq!(pixels(&deep.into()), [0x12, 0x12, 0x12]);
}

#[test]
fn every_format_is_read_and_an_animation_is_its_first_frame() {
    let frame = |shade| RgbaImage::from_pixel(4, 3, Rgba([shade, shade, shade, 255]));
    for format in [
        ImageFormat::Png,
        ImageFormat::WebP,
        ImageFormat::Bmp,
        ImageFormat::Gif,
    ] {
        let picture = Picture::decode(&file(&frame(200).into(), format), &LIMITS);
        let picture = picture.expect("the image is decoded");
        assert_eq!((picture.height(), picture.width()), (3, 4), "{format:?}");
        assert_eq!(picture.rgb(), [200; 36], "{format:?}");
    }
    let mut animation = Vec::new();
    let mut encoder = GifEncoder::new(&mut animation);
    for shade in [10, 250] {
        encoder
            .encode_frame(Frame::new(frame(shade)))
            .expect("a frame is encoded");
    }
    drop(encoder);
    let first = Picture::decode(&animation, &LIMITS).expect("the first frame is decoded");
    assert_eq!(first.rgb(), [10; 36]);
}

/// A PNG of one bit a pixel that says it has so many.
fn png_of(width: u32, height: u32) -> Vec<u8> {
    let mut header = b"IHDR".to_vec();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([1, 0, 0, 0, 0]);
    let mut hasher = flate2::Crc::new();
    hasher.update(&header);
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    bytes.extend(&header);
    bytes.extend(hasher.sum().to_be_bytes());
    bytes.extend([0, 0, 0, 0]);
    bytes.extend(b"IDAT\x35\xaf\x06\x1e");
    bytes
}

#[test]
fn hostile_files_are_refused_before_anything_is_allocated_for_them() {
    let refused = |bytes: &[u8]| Picture::decode(bytes, &LIMITS).expect_err("the file is refused");
    for (width, height) in [
        (65_500, 65_500),
        (0, 5),
        (1001, 1),
        (1, 1001),
        (400, 400),
        (u32::MAX >> 1, 1),
    ] {
        let error = refused(&png_of(width, height));
        assert!(
            matches!(error, ImageError::Size { .. } | ImageError::Decode(_)),
            "{width} × {height}: {error}"
        );
    }
    let gif = [b"GIF89a\xff\xff\xff\xff\0\0\0".as_slice(), &[0; 20]].concat();
    assert!(matches!(refused(&gif), ImageError::Size { .. }));
    let long = vec![0; LIMITS.bytes as usize + 1];
    assert!(matches!(refused(&long), ImageError::Bytes { .. }));
    for other in [
        "",
        "<svg xmlns='http://www.w3.org/2000/svg'/>",
        "II*\0",
        "%PDF-1.7",
        "qoif",
    ] {
        assert_eq!(refused(other.as_bytes()), ImageError::Format, "{other}");
    }
    let whole = file(&RgbaImage::new(20, 20).into(), ImageFormat::Png);
    for end in [8, 20, 40, whole.len() / 2] {
        assert!(
            matches!(refused(&whole[..end]), ImageError::Decode(_)),
            "the first {end} bytes"
        );
    }
}

#[test]
fn a_resize_keeps_what_does_not_change_and_every_filter_keeps_a_plane() {
    let plane = Picture::new(7, 5, vec![93; 105]).expect("a picture");
    for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
        for (height, width) in [(7, 5), (1, 1), (3, 11), (40, 2), (7, 6)] {
            let resized = plane.resize(height, width, filter);
            assert_eq!((resized.height(), resized.width()), (height, width));
            let off = resized.rgb().iter().map(|value| value.abs_diff(93)).max();
            assert!(off <= Some(1), "{filter:?} to {height} × {width}");
        }
    }
    let noise = Picture::new(2, 2, (0..12).map(|index| index * 20).collect()).expect("a picture");
    assert_eq!(noise.resize(2, 2, Filter::Lanczos), noise);
}

fn processor(size: &Value) -> Result<Option<ImageProcessor>, ImageError> {
    let config = json!({
        "model_type": "idefics3", "scale_factor": 2, "image_token_id": 7,
        "vision_config": {"image_size": 364, "patch_size": 14},
    });
    let file = json!({"size": {"longest_edge": size}, "max_image_size": {"longest_edge": 364}});
    ImageProcessor::read(&config, [Some(&file), None])
}

#[test]
fn tiles_of_idefics_3_are_those_of_transformers() {
    let file = json!({});
    let fields = Fields {
        file: "preprocessor_config.json",
        value: &file,
    };
    let tiling = Tiling::read(&fields).expect("the defaults are known");
    // Of the guide's table of sizes.
    for (size, tiles) in [
        ([1, 1], [4, 4]),
        ([2, 3], [3, 4]),
        ([70, 42], [4, 3]),
        ([100, 1], [4, 1]),
        ([30, 2000], [1, 4]),
        ([333, 517], [3, 4]),
        ([513, 511], [4, 4]),
        ([1541, 1000], [4, 3]),
        ([2000, 500], [4, 1]),
        ([500, 2000], [1, 4]),
    ] {
        let [_, second] = tiling.sizes(size);
        assert_eq!(second, tiles.map(|count| 364 * count), "{size:?}");
    }
    let placeholders = text([3, 4], 169).matches("<image>").count();
    assert_eq!(placeholders, 2197);
}

#[test]
fn sizes_of_mistral_3_are_those_of_transformers() {
    let file = json!({"size": {"longest_edge": 1540}});
    let fields = Fields {
        file: "preprocessor_config.json",
        value: &file,
    };
    let grid = Grid {
        patch: 14,
        block: 2,
    };
    let sizing = Sizing::read(&fields, grid).expect("the fields are known");
    assert_eq!(sizing.side_max(), 1540);
    // Of the guide's table of sizes.
    for (size, expected, tokens) in [
        ([1, 1], [28, 28], 2),
        ([27, 41], [28, 56], 3),
        ([42, 70], [56, 84], 8),
        ([100, 1], [112, 28], 8),
        ([1, 100], [28, 112], 5),
        ([30, 2000], [28, 1540], 56),
        ([333, 517], [336, 532], 240),
        ([1080, 1920], [868, 1540], 1736),
        ([1541, 1000], [1540, 1008], 2035),
        ([3024, 4032], [1176, 1540], 2352),
    ] {
        let [height, width] = sizing.size(size);
        assert_eq!([height, width], expected, "{size:?}");
        let text = pixtral::text(height / 28 * (width / 28), width / 28);
        assert_eq!(text.matches('[').count(), tokens, "{size:?}");
        assert_eq!(text.matches("[IMG_END]").count(), 1, "{size:?}");
        assert!(text.ends_with("[IMG][IMG_END]"), "{size:?}");
    }
    let thin = Picture::new(1, 16_000, vec![0; 48_000]).expect("a picture");
    let error = sizing
        .fit(&thin)
        .expect_err("nothing is left of its height");
    assert!(matches!(error, ImageError::Shape { height: 1, .. }));
}

#[test]
fn files_of_mistral_3_that_do_not_fit_together_are_refused_by_name() {
    let read = |vision: u32, edge: u32, around: &Value| {
        let config = json!({
            "model_type": "mistral3", "image_token_index": 10,
            "vision_config": {"image_size": vision, "patch_size": 14},
        });
        let file = json!({"size": {"longest_edge": edge}});
        ImageProcessor::read(&config, [Some(&file), Some(around)])
    };
    let known = read(1540, 1540, &json!({"image_token": "[IMG]"})).expect("it is known");
    let known = known.expect("it reads images");
    assert_eq!((known.placeholder(), known.marker()), (10, "[IMG]"));
    for (vision, edge, around, field) in [
        (1540, 1568, json!({}), "vision_config.image_size"),
        (1540, 1540, json!({"image_token": "<i>"}), "image_token"),
        (
            1540,
            1540,
            json!({"image_break_token": ""}),
            "image_break_token",
        ),
        (
            1540,
            1540,
            json!({"spatial_merge_size": 3}),
            "spatial_merge_size",
        ),
        (1540, 0, json!({}), "size.longest_edge"),
    ] {
        let error = read(vision, edge, &around).expect_err("it is refused");
        assert!(error.to_string().contains(field), "{field}: {error}");
    }
}

#[test]
fn fields_of_a_processor_are_checked() {
    assert!(processor(&json!(1456)).expect("it is known").is_some());
    for size in [json!("x"), json!(-1), json!(0), json!(16_000), json!(1.5)] {
        let error = processor(&size).expect_err("the size is refused");
        assert!(
            error.to_string().contains("`size.longest_edge`"),
            "{size}: {error}"
        );
    }
    let text_only = json!({"model_type": "llama", "vision_config": {}});
    assert_eq!(ImageProcessor::read(&text_only, [None, None]), Ok(None));
}

#[test]
fn a_tile_has_its_patches_block_by_block_with_their_digest() {
    let file = json!({
        "size": {"longest_edge": 364}, "max_image_size": {"longest_edge": 364}, "resample": 2
    });
    let config = json!({
        "model_type": "smolvlm", "scale_factor": 2,
        "vision_config": {"image_size": 364, "patch_size": 14},
    });
    let processor = ImageProcessor::read(&config, [Some(&file), None]).expect("it is known");
    let processor = processor.expect("it reads images");
    let rgb: Vec<u8> = (0..364 * 364 * 3)
        .map(|index| (index % 251) as u8)
        .collect();
    let picture = Picture::new(364, 364, rgb.clone()).expect("a picture");
    let processed = processor.process(&picture).expect("it is processed");
    let [tile] = &processed.tiles[..] else {
        panic!("a square of one tile is one tile")
    };
    assert_eq!(tile.positions[..6], [0, 1, 26, 27, 2, 3]);
    assert_eq!(
        (tile.rows, tile.columns, tile.patches.len()),
        (169, 592, 676 * 592)
    );
    // Row 0, column 14 of the picture is the first number of the second patch; zeros follow its 588 numbers.
    let expected = f32::from(rgb[3 * 14]) / 127.5 - 1.0;
    assert!((tile.patches[592] - expected).abs() < 1e-6);
    assert_eq!(tile.patches[588..592], [0.0; 4]);
    let mut other = rgb;
    other[1000] ^= 1;
    let other = Picture::new(364, 364, other).expect("a picture");
    let other = processor.process(&other).expect("it is processed");
    assert_ne!(other.tiles[0].digest, tile.digest);
}
