//! `unsafe` is allowed only in the listed modules, and each use has a SAFETY comment.

use super::{Finding, Tree, is_listed, source::Source};

/// The files and folders (with a `/` at the end) that may use `unsafe`.
pub(super) const ALLOWED: [&str; 15] = [
    // Other processes write to rings and windows, which have no safe view.
    "crates/fabric/",
    // Lends memory to libfabric, a C library.
    "crates/ofi/",
    // The frame table lends blocks to sessions, the worker and the disk by a state word for each.
    "crates/cache/src/frames.rs",
    "crates/cache/src/service.rs",
    "crates/cache/src/guard.rs",
    // The token lends the core of a worker to one thread at a time.
    "crates/interconnect/src/worker/token.rs",
    "crates/interconnect/src/worker/token/",
    // Reads the counter of the processor.
    "crates/bench/src/clock.rs",
    // The disk writes into frames, which are mapped memory.
    "crates/disks/src/io/",
    "crates/disks/tests/io.rs",
    "crates/disks/examples/reads.rs",
    // Makes one call that has no safe interface.
    "crates/membership/src/runtime/priority.rs",
    // Resets signals and closes inherited files, before anything else has one.
    "crates/plexus/src/process.rs",
    // Replaces functions of the C library (planned).
    "crates/sockets/",
    // Exposes a C interface (planned).
    "crates/capi/",
];

/// The number of lines above an `unsafe` in which its SAFETY comment may begin.
const REACH: usize = 12;

/// Checks every Rust file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources().iter().flat_map(|(path, source)| file(path, source)).collect()
}

fn file(path: &str, source: &Source) -> Vec<Finding> {
    let lines: Vec<_> = source.words().filter(|(_, word)| *word == "unsafe").map(|(line, _)| line).collect();
    if !is_listed(&ALLOWED, path) {
        let what = "`unsafe` outside the allowed modules (see docs/style.md)";
        return lines.into_iter().map(|line| Finding::new(path, line, what)).collect();
    }
    let bare = lines.into_iter().filter(|line| needs_reason(source, *line) && !has_reason(source, *line));
    bare.map(|line| Finding::new(path, line, "`unsafe` without a SAFETY comment above it")).collect()
}

/// Returns true for a block or an `unsafe impl`; a function states a duty of its callers instead.
fn needs_reason(source: &Source, line: usize) -> bool {
    let here = &source.code[line - 1];
    let after = here.split("unsafe").nth(1).unwrap_or_default().trim_start();
    after.starts_with('{') || after.starts_with("impl") || after.is_empty()
}

/// Returns true if a SAFETY comment is on the line or above it without a blank line between.
fn has_reason(source: &Source, line: usize) -> bool {
    let blank =
        |index: usize| source.code[index].trim().is_empty() && source.comments[index].trim().is_empty();
    (line.saturating_sub(REACH)..line)
        .rev()
        .take_while(|index| !blank(*index))
        .any(|index| source.comments[index].contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds_in;

    #[test]
    fn unsafe_outside_the_allowed_modules_is_found() {
        let block = "// SAFETY: it is.\nunsafe { f() }";
        finds_in(check, "crates/fabric/src/shm.rs", block, &[]);
        finds_in(check, "crates/base/src/lib.rs", block, &[(2, "outside")]);
        finds_in(
            check,
            "crates/base/src/lib.rs",
            "#![deny(unsafe_code)]\n// unsafe\nlet a = \"unsafe\";",
            &[],
        );
    }

    #[test]
    fn block_without_a_reason_is_found() {
        let path = "crates/fabric/src/shm.rs";
        finds_in(check, path, "unsafe { f() }", &[(1, "SAFETY")]);
        finds_in(check, path, "// SAFETY: long ago.\n\nunsafe { f() }", &[(3, "SAFETY")]);
        finds_in(check, path, "// SAFETY: one field.\nunsafe impl Send for A {}", &[]);
        finds_in(check, path, "unsafe impl Send for A {}", &[(1, "SAFETY")]);
        finds_in(check, path, "// SAFETY: checked.\nlet a = f(\n    b,\n    unsafe { c },\n);", &[]);
        finds_in(check, path, "let s = \"SAFETY:\"; unsafe { f(s) }", &[(1, "SAFETY")]);
        finds_in(check, path, "/// # Safety\n/// Mapped.\nunsafe fn f() {}", &[]);
    }
}
