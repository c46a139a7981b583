//! Bits of the disk are flipped under the tables: a statement is right, or it fails.

use std::fs;

use crate::common::Cluster;

use super::USER;

const ROWS: usize = 2048;

/// The rows whose text is damaged on the disk.
const DAMAGED: [usize; 2] = [700, 1500];

#[test]
fn a_damaged_block_is_named_and_never_read() {
    let cluster = Cluster::with(1, &["--sql-port", "5433", "--size-mib", "16", "--cache-mib", "8"], USER);
    cluster.bear_busy_disks();
    cluster.run("up").said().ok();
    let sql = |text: &str| cluster.run("sql").args(["-c", text]).said();
    sql("create table t (id int primary key, item text)").ok();
    sql("create table other (id int primary key)").ok();
    sql("insert into t values (1, 'item-1;')").ok();
    for power in 0..ROWS.ilog2() {
        let more = 1 << power;
        sql(&format!("insert into t select id + {more}, 'item-' || (id + {more})::text || ';' from t")).ok();
    }
    cluster.run("down").said().ok();
    let disks = [cluster.dir().join("disks/0")];
    let mut flipped = 0;
    for disk in disks {
        let mut bytes = fs::read(&disk).unwrap();
        for row in DAMAGED {
            let text = format!("item-{row};");
            let places: Vec<_> = (0..bytes.len() - text.len())
                .filter(|at| bytes[*at..].starts_with(text.as_bytes()))
                .collect();
            // Another text of the same length.
            places.iter().for_each(|at| bytes[at + 5] ^= 1);
            flipped += places.len();
        }
        fs::write(&disk, bytes).unwrap();
    }
    assert!(flipped >= DAMAGED.len(), "{flipped}");
    cluster.run("up").said().ok();
    let mut refused = 0;
    for id in (1..=ROWS).step_by(9).chain(DAMAGED) {
        let said = sql(&format!("select item from t where id = {id}"));
        let is_right = said.err.is_empty() && said.out.contains(&format!("item-{id};"));
        let is_named = said.err.contains("block") && said.err.contains("(XX001)");
        assert!(is_right || is_named, "{id}: {}{}", said.out, said.err);
        assert!(is_named || !DAMAGED.contains(&id), "{id}: {}", said.out);
        refused += usize::from(is_named);
    }
    assert!(refused < ROWS / 9 / 2, "{refused}");
    for statement in ["select count(*) from t", "update t set item = 'new' where id = 700"] {
        assert!(sql(statement).err.contains("(XX001)"), "{statement}");
    }
    // All else goes on, also beside the statements that have failed.
    sql("insert into other values (1), (2)").ok();
    sql("update t set item = 'new' where id = 1").ok();
    assert!(sql("select count(*) from other").ok().contains('2'));
    let checked = cluster.run("store").args(["check"]).said();
    let text = format!("{}{}", checked.out, checked.err);
    let named = text.lines().filter(|line| line.contains("is damaged: checksum")).count();
    assert!(checked.code == Some(1) && named >= DAMAGED.len(), "{text}");
    assert!(!text.contains("no tree has it"), "{text}");
}
