//! The prompt of `plexus sql` at a terminal.

use std::fs::File;

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

use super::*;

/// Types keys at the prompt, each time after it has shown the text of the turn before and the next
/// prompt. Returns all that it shows.
fn talk(cluster: &Cluster, turns: &[(&str, &str)]) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&terminal).unwrap();
    let side = || Stdio::from(ioctl_tiocgptpeer(&terminal, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap());
    let mut command = Command::new(program());
    command.args(["sql", "-C"]).arg(cluster.dir()).env("HOME", cluster.parent()).env("TERM", "xterm");
    let mut prompt = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    // What it holds of the other side ends with it.
    drop(command);
    let mut terminal = File::from(terminal);
    let mut shown = String::new();
    for (keys, expected) in turns {
        terminal.write_all(keys.as_bytes()).unwrap();
        let before = shown.len();
        let is_done = |shown: &str| {
            shown[before..].split_once(expected).is_some_and(|(_, rest)| rest.contains("plexus=> "))
        };
        while !is_done(&shown) {
            let mut bytes = [0; 4096];
            let count = terminal.read(&mut bytes).unwrap_or(0);
            assert!(count > 0, "{keys:?}: {expected:?} is not in {shown}");
            shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
    terminal.write_all(b"exit\r").unwrap();
    assert!(prompt.wait().unwrap().success());
    shown
}

#[test]
fn the_prompt_completes_words_and_keeps_a_history() {
    let cluster = Cluster::with(1, &["--sql-port", "5433", "--size-mib", "64"], USER);
    cluster.run("up").said().ok();
    talk(
        &cluster,
        &[
            ("", ""),
            ("create table animals (legs int);\r", "CREATE TABLE"),
            // Over two lines, and with a semicolon in quotes.
            ("insert into ani\tvalues (length(';\r1234567'));\r", "INSERT 0 1"),
            ("SEL\tleg\tfrom animals;\r", "(1 row)"),
            // A statement that is left with Ctrl-C, and one that fails.
            ("select \x03", ""),
            ("selec;\r", "42601"),
        ],
    );
    // The one before the last of the session before.
    let shown = talk(&cluster, &[("", ""), ("\x1b[A\x1b[A\r", "(1 row)")]);
    assert!(shown.contains("SELECT") && shown.contains("\n   9"), "{shown}");
    let history = cluster.parent().join(".plexus_sql_history");
    assert_eq!(fs::metadata(history).unwrap().permissions().mode() & 0o777, 0o600);
    cluster.run("down").said().ok();
}
