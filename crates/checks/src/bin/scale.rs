//! Prints the table of `docs/performance.md` with the message counts of larger clusters.

fn main() {
    print!("{}", plexus_checks::scale::table());
}
