//! Checks that the repository keeps the house rules.

#[test]
fn repository_keeps_the_house_rules() {
    let tree = xtask::tidy::Tree::read(&xtask::root()).expect("the repository can be read");
    let findings = xtask::tidy::check(&tree);
    let listed: String = findings.iter().map(|finding| format!("\n  {finding}")).collect();
    assert!(findings.is_empty(), "{} findings:{listed}", findings.len());
}
