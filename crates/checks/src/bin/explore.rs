//! The members of the registry in every order of events: `explore [ENDS]`, with so many ends of nodes at most (2: eleven million worlds, two
//! minutes and a half, 1 GB).

use std::process::ExitCode;

use plexus_checks::registry::explored::{Lie, explore};

fn main() -> ExitCode {
    let ends = std::env::args().nth(1).map_or(Ok(2), |word| word.parse());
    let Ok(ends) = ends else {
        eprintln!("how often nodes end is a number up to 255");
        return ExitCode::from(2);
    };
    match explore(ends, Lie::Nothing) {
        Ok((worlds, at_rest)) => {
            println!("{ends} ends of nodes: {worlds} worlds, {at_rest} at rest: all of them hold");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}
