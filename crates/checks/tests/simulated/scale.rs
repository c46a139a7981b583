//! Messages in larger clusters: the formulas against the counts, and the table in the documentation
//! against both.

use plexus_checks::scale::{Row, table};

#[test]
fn formulas_match_counted_messages() {
    for nodes in [4, 8, 12, 16] {
        let (counted, worked_out) = (Row::counted(nodes), Row::worked_out(nodes));
        for ((what, counted), (_, worked_out)) in counted.named().into_iter().zip(worked_out.named()) {
            let off = (counted / worked_out - 1.0).abs();
            assert!(off < 0.1, "{what}, {nodes} nodes: counted {counted}, calculated {worked_out}");
        }
    }
}

#[test]
fn documentation_contains_the_table() {
    let document = include_str!("../../../../docs/performance.md");
    let table = table();
    assert!(document.contains(&table), "docs/performance.md must contain:\n{table}");
}
