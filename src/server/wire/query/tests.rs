//! Tests of `server/wire/query.rs`.

use super::value;

#[test]
fn values_are_found_by_name_and_decoded() {
    let query = Some("limit=2&after_id=org%2Fmy+model&limit=3&flag");
    assert_eq!(value(query, "limit").as_deref(), Some("2"));
    assert_eq!(value(query, "after_id").as_deref(), Some("org/my model"));
    assert_eq!(value(query, "id"), None);
    assert_eq!(value(query, "flag"), None);
    assert_eq!(value(None, "limit"), None);
}
