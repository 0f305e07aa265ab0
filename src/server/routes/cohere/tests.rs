//! Tests of `server/routes/cohere.rs`.

use super::*;

#[test]
fn a_vector_has_every_form() {
    let vector = [1.0, -1.0, 0.5, 0.0, 0.004, -0.004, 0.1, -0.1, 0.25];
    let table = [
        ("float", Coded::Floats(vector.to_vec())),
        (
            "int8",
            Coded::Signed(vec![127, -127, 64, 0, 1, -1, 13, -13, 32]),
        ),
        (
            "uint8",
            Coded::Unsigned(vec![255, 1, 192, 128, 129, 127, 141, 115, 160]),
        ),
        ("ubinary", Coded::Unsigned(vec![0b1010_1010, 0b1000_0000])),
        ("binary", Coded::Signed(vec![42, 0])),
    ];
    for (form, expected) in table {
        assert_eq!(coded(&vector, form), expected, "{form}");
    }
    assert_eq!(coded(&[1.0], "base64"), Coded::Base64("AACAPw==".into()));
}
