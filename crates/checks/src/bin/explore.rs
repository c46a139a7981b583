//! Explores small scopes for which the tests have no time.

use std::process::ExitCode;

use clap::{Args, Parser, ValueEnum};
use plexus_checks::{
    blocks::one_block::{self, Limits},
    groups,
    harness::explore::Worlds,
    registry,
};

/// Explores every order of events of a small cluster.
#[derive(Parser)]
struct Arguments {
    /// What is explored.
    scope: Scope,
    /// The number of times that nodes end at most.
    #[arg(default_value_t = 2)]
    ends: u8,
    /// How much of the other events of one block may happen.
    #[command(flatten)]
    block: Block,
}

/// The limits of `block`.
#[derive(Args)]
struct Block {
    /// The nodes.
    #[arg(long, default_value_t = 3)]
    nodes: u8,
    /// Changes of the block.
    #[arg(long, default_value_t = 2)]
    changes: u8,
    /// Shared copies.
    #[arg(long, default_value_t = 0)]
    reads: u8,
    /// Consistent copies.
    #[arg(long, default_value_t = 0)]
    copies: u8,
    /// Checkpoints.
    #[arg(long, default_value_t = 0)]
    checkpoints: u8,
    /// Nodes that hand the block back.
    #[arg(long, default_value_t = 0)]
    hand_backs: u8,
    /// Nodes that start again.
    #[arg(long, default_value_t = 0)]
    starts: u8,
    /// Records that travel with the block.
    #[arg(long, default_value_t = 0)]
    carried: u8,
    /// Scans of redo streams that fail once.
    #[arg(long, default_value_t = 0)]
    scan_failures: u8,
}

impl Block {
    fn limits(&self, deaths: u8) -> Limits {
        let Self { nodes, changes, reads, copies, checkpoints, hand_backs, starts, .. } = *self;
        let Self { carried, scan_failures, .. } = *self;
        Limits {
            nodes,
            changes,
            reads,
            copies,
            checkpoints,
            hand_backs,
            deaths,
            starts,
            carried,
            scan_failures,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Scope {
    /// Two members of the registry.
    Registry,
    /// A group of two processes.
    Groups,
    /// One block of the cache, with redo.
    Block,
}

fn main() -> ExitCode {
    let Arguments { scope, ends, block } = Arguments::parse();
    let explored = match scope {
        Scope::Registry => registry::explored::explored(ends, registry::explored::Lie::Nothing),
        Scope::Groups => groups::explored::explored(2, ends, ends, groups::explored::Lie::Nothing),
        Scope::Block => one_block::explored(block.limits(ends)),
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
