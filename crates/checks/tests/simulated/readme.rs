//! The README lists exactly the existing scenarios, in their order.

use plexus_checks::scenario;

#[test]
fn the_table_of_scenarios_is_complete() {
    let text = include_str!("../../README.md");
    let (_, table) = text.split_once("| scenario | about |\n|---|---|\n").expect("the table of scenarios");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let named: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!(named, scenario::ALL.map(|scenario| scenario.name));
}
