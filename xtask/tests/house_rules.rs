//! The repository keeps the house rules.

#[test]
fn the_repository_is_tidy() {
    let tree = xtask::tidy::Tree::read(&xtask::root()).expect("the repository can be read");
    let findings = xtask::tidy::check(&tree);
    let listed: String = findings.iter().map(|finding| format!("\n  {finding}")).collect();
    assert!(findings.is_empty(), "{} places break the house rules:{listed}", findings.len());
}
