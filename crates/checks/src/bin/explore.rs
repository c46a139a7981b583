//! Explores small scopes for which the tests have no time: `explore [registry|groups] [ENDS]`, with
//! at most so many ends of nodes (2).

use std::process::ExitCode;

use plexus_checks::{groups, harness::explore::Worlds, registry};

const USAGE: &str = "explore registry|groups [ENDS]: what is explored, and how often nodes end at most [2]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ends = words.get(1).map_or(Ok(2), |word| word.parse());
    let explored = match (words.first().map(String::as_str), ends, words.len()) {
        (Some("registry"), Ok(ends), ..=2) => {
            registry::explored::explored(ends, registry::explored::Lie::Nothing)
        }
        (Some("groups"), Ok(ends), ..=2) => {
            groups::explored::explored(2, ends, ends, groups::explored::Lie::Nothing)
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match explored {
        Ok(Worlds { all, at_rest }) => {
            println!("{all} worlds, {at_rest} at rest: all of them hold");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}
