//! Checks a store with its tables: beside what the store checks, each index has one entry for each
//! row, and no others.

use plexus_base::BlockId;
use plexus_cache::Cache;
use plexus_store::{CheckedStore, Isolation, Store, tree::ScanPlace};

use crate::{
    catalog::{Catalog, Table, Transaction},
    error::Result,
    types::encode,
};

/// The result of a check of tables and of their store.
#[derive(Clone, Debug, Default)]
pub struct CheckedTables {
    /// The number of tables.
    pub tables: u64,
    /// Their rows.
    pub rows: u64,
    /// The store.
    pub store: CheckedStore,
}

/// Checks a store and its tables, all with one snapshot, while nodes use them. `progress` gets the
/// number of blocks or rows read in the present step.
///
/// # Errors
/// Something cannot be read.
pub async fn check(
    store: &Store<Cache>,
    progress: &mut dyn FnMut(&'static str, u64),
) -> std::result::Result<CheckedTables, String> {
    let mut by = store.begin(Isolation::RepeatableRead);
    let mut checked = CheckedTables::default();
    let tables = Catalog::all_tables(&mut by).await.map_err(|error| error.to_string())?;
    for table in &tables {
        let mut tell = |rows| progress("rows", rows);
        match check_table(&mut by, table, checked.rows, &mut tell).await {
            Ok((rows, faults)) => {
                checked.rows += rows;
                checked.store.faults.extend(faults);
            }
            Err(error) => checked.store.faults.push(format!("table {}: {error}", table.name)),
        }
    }
    checked.tables = tables.len() as u64;
    let found = store.check(&mut by, &mut |blocks| progress("blocks", blocks)).await;
    let found = found.map_err(|error| error.to_string())?;
    let faults = std::mem::take(&mut checked.store.faults).into_iter().chain(found.faults).collect();
    checked.store = CheckedStore { faults, ..found };
    Ok(checked)
}

async fn check_table(
    by: &mut Transaction,
    table: &Table,
    before: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, Vec<String>)> {
    let (mut count, mut faults) = (0, Vec::new());
    let mut place = Some(ScanPlace::from(&[]));
    while let Some(from) = place {
        let (rows, next) = by.scan(table.rows(), &from).await?;
        place = next;
        for (key, bytes) in rows.iter() {
            count += 1;
            let row = encode::read_row(bytes, table.columns.len())?;
            if table.primary_key(&row)?.is_some_and(|primary| primary != key) {
                faults.push(format!("table {}: row {count} is not at the place of its key", table.name));
            }
            // Those with expressions or conditions need a session to compute their entries.
            for index in table.indexes.iter().filter(|index| index.is_plain()) {
                let (entry, _) = index.key(table, key, &row)?;
                if by.get(index.tree(), &entry).await? != Some(index.value_of(key)) {
                    faults.push(format!("index {}: row {count} of {} is missing", index.name, table.name));
                }
            }
        }
        progress(before + count);
    }
    for index in table.indexes.iter().filter(|index| index.is_plain()) {
        let entries = count_rows(by, index.tree()).await?;
        if entries != count {
            faults.push(format!("index {}: {entries} entries, and the table has {count} rows", index.name));
        }
    }
    Ok((count, faults))
}

async fn count_rows(by: &mut Transaction, tree: BlockId) -> Result<u64> {
    let (mut count, mut place) = (0, Some(ScanPlace::from(&[])));
    while let Some(from) = place {
        let (rows, next) = by.scan(tree, &from).await?;
        count += rows.len() as u64;
        place = next;
    }
    Ok(count)
}
