//! t
#[test]
fn t() {}
