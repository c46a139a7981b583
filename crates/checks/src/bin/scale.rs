//! Prints the table of `docs/performance.md` that says how much is said in larger clusters.

fn main() {
    print!("{}", plexus_checks::scale::table());
}
