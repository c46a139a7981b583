//! Sequences: statements that make, change and remove them.

use sqlparser::ast;

use super::{Definer, grant::change_owner};
use crate::{
    bind::{Parameters, select::refuse, type_of},
    catalog::{Catalog, Column, Entry, RelationName, Table, duplicate, undefined},
    error::{Result, SqlError, code, fail},
    exec::Run,
    parse::{SEQUENCE_NAME, folded, relation, relation_of_text},
    sequences::Sequence,
    types::Type,
};

/// The most bytes of a name that is made.
const MOST_NAME: usize = 63;

/// Returns a name of parts, of which the longest become shorter until it fits, and an ending.
fn joined(parts: &[&str], ending: &str) -> String {
    let mut parts: Vec<&str> = parts.to_vec();
    let length = |parts: &[&str]| parts.iter().map(|part| part.len() + 1).sum::<usize>() + ending.len();
    while length(&parts) > MOST_NAME {
        let Some(longest) = parts.iter_mut().rev().max_by_key(|part| part.len()) else { break };
        let end = longest.char_indices().next_back().map_or(0, |(at, _)| at);
        *longest = &longest[..end];
    }
    format!("{}_{ending}", parts.join("_"))
}

/// Returns the name of parts and an ending, then those with a number behind it.
pub(super) fn numbered(parts: &[&str], ending: &str) -> impl Iterator<Item = String> {
    let name = move |number: usize| match number {
        0 => joined(parts, ending),
        number => joined(parts, &format!("{ending}{number}")),
    };
    (0..).map(name)
}

/// Returns the first name of parts that no relation of a schema has, and that is not taken: behind
/// the ending is a number if need be.
pub(super) async fn free_name(
    run: &mut Run<'_>,
    catalog: &Catalog,
    schema: &str,
    is_taken: impl Fn(&str) -> bool,
    parts: &[&str],
    ending: &str,
) -> Result<String> {
    let mut names = numbered(parts, ending);
    loop {
        let name = names.next().unwrap_or_default();
        if !is_taken(&name) && !catalog.has(run.by, &RelationName::new(schema, &name)).await? {
            return Ok(name);
        }
    }
}

/// Returns the type of a column that draws its values from a sequence.
pub(super) fn serial_of(of: &ast::DataType) -> Option<Type> {
    match of.to_string().to_ascii_lowercase().as_str() {
        "serial" | "serial4" => Some(Type::Int4),
        "bigserial" | "serial8" => Some(Type::Int8),
        "smallserial" | "serial2" => Some(Type::Int2),
        _ => None,
    }
}

/// Returns the name of the sequence of an identity column, if the option is that.
fn given_name(option: &ast::SequenceOptions) -> Option<String> {
    match option {
        ast::SequenceOptions::Cache(count) => {
            count.to_string().split_once(SEQUENCE_NAME).map(|(_, name)| name.to_owned())
        }
        _ => None,
    }
}

/// Makes the sequence of a column.
pub(super) async fn own_sequence(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    table: &RelationName,
    column: &mut Column,
    options: &[ast::SequenceOptions],
) -> Result<()> {
    let parts = [&*table.name, &column.name];
    let name = free_name(run, catalog, &table.schema, |_| false, &parts, "seq").await?;
    let mut name = RelationName::new(&table.schema, &name);
    if let Some(given) = options.iter().find_map(given_name) {
        name = catalog.place_of(run.by, &relation_of_text(&given), false).await?;
    }
    if catalog.has(run.by, &name).await? {
        return Err(duplicate(&name.name));
    }
    make_sequence(run, catalog, &name, column.of, options).await?;
    column.not_null = true;
    column.default = Some(format!("nextval('{}'::regclass)", name.quoted().replace('\'', "''")));
    column.own_sequence = Some(name.key());
    Ok(())
}

/// A change of ALTER SEQUENCE.
#[derive(Clone, Debug)]
pub(crate) struct AlterSequence {
    pub(crate) name: ast::ObjectName,
    pub(crate) if_exists: bool,
    pub(crate) options: Vec<ast::SequenceOptions>,
    /// RESTART, and its number.
    pub(crate) restart: Option<Option<i64>>,
    pub(crate) rename: Option<ast::Ident>,
    pub(crate) owner: Option<ast::Ident>,
}

/// Runs CREATE SEQUENCE.
pub(crate) async fn create_sequence(
    define: &mut Definer<'_, '_>,
    name: &ast::ObjectName,
    if_not_exists: bool,
    options: &[ast::SequenceOptions],
) -> Result<()> {
    let name = define.place_of(name, false).await?;
    if define.has(&name).await? {
        return define.skip(if_not_exists, duplicate(&name.name));
    }
    make_sequence(define.run, define.catalog, &name, Type::Int8, options).await?;
    define.own(&name, options).await
}

async fn make_sequence(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    name: &RelationName,
    of: Type,
    options: &[ast::SequenceOptions],
) -> Result<()> {
    let id = run.by.store().fresh_id().await?;
    let RelationName { schema, name: own } = name.clone();
    let sequence = Sequence {
        id,
        schema,
        name: own,
        owner: catalog.place().role.clone(),
        start: 1,
        increment: 1,
        least: 1,
        most: i64::MAX,
        cycles: false,
        cache: 1,
        of,
        grants: Vec::new(),
        comment: None,
    };
    let sequence = changed(sequence, options, true)?;
    let entry = Entry::Sequence(sequence.clone());
    catalog.change_entry(run.by, name, Some(&entry)).await?;
    sequence.make(run.by).await?;
    run.context.sequences.made.borrow_mut().insert(id);
    Ok(())
}

/// Returns a sequence with options; a new one has the defaults of its type.
fn changed(old: Sequence, options: &[ast::SequenceOptions], is_new: bool) -> Result<Sequence> {
    use ast::SequenceOptions as O;
    let number = |expr: &ast::Expr| -> Result<i64> {
        let text = expr.to_string();
        let text = text.split(SEQUENCE_NAME).next().unwrap_or_default().replace(' ', "");
        text.parse()
            .map_err(|_| SqlError::new(code::SYNTAX_ERROR, format!("syntax error at or near \"{text}\"")))
    };
    let invalid = |message: String| Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message));
    let (mut of, mut increment, mut cycles, mut cache) = (old.of, old.increment, old.cycles, old.cache);
    // Some(None) is the default.
    let kept = |value: i64| if is_new { Some(None) } else { Some(Some(value)) };
    let (mut least, mut most, mut start) = (kept(old.least), kept(old.most), kept(old.start).flatten());
    for option in options {
        match option {
            O::DataType(named) => {
                of = type_of(named, &Parameters::default())?;
                if let (false, Some((low, high))) = (is_new, bounds(old.of)) {
                    // A bound of the type goes with it.
                    least = least.filter(|least| *least != Some(low)).or(Some(None));
                    most = most.filter(|most| *most != Some(high)).or(Some(None));
                }
            }
            O::IncrementBy(by, _) => increment = number(by)?,
            O::MinValue(value) => least = Some(value.as_ref().map(number).transpose()?),
            O::MaxValue(value) => most = Some(value.as_ref().map(number).transpose()?),
            O::StartWith(value, _) => start = Some(number(value)?),
            O::Cache(value) => match number(value)? {
                numbers @ 1.. => cache = numbers,
                other => return invalid(format!("CACHE ({other}) must be greater than zero")),
            },
            O::Cycle(is_off) => cycles = !is_off,
            O::OwnedBy(_) => {}
        }
    }
    let Some((lowest, highest)) = bounds(of) else {
        return invalid("sequence type must be smallint, integer, or bigint".into());
    };
    if increment == 0 {
        return invalid("INCREMENT must not be zero".into());
    }
    let is_rising = increment > 0;
    let least = least.flatten().unwrap_or(if is_rising { 1 } else { lowest });
    let most = most.flatten().unwrap_or(if is_rising { highest } else { -1 });
    for (word, bound) in [("MAXVALUE", most), ("MINVALUE", least)] {
        if !(lowest..=highest).contains(&bound) {
            return invalid(format!("{word} ({bound}) is out of range for sequence data type {}", of.name()));
        }
    }
    if least >= most {
        return invalid(format!("MINVALUE ({least}) must be less than MAXVALUE ({most})"));
    }
    let start = start.unwrap_or(if is_rising { least } else { most });
    if start < least {
        return invalid(format!("START value ({start}) cannot be less than MINVALUE ({least})"));
    }
    if start > most {
        return invalid(format!("START value ({start}) cannot be greater than MAXVALUE ({most})"));
    }
    Ok(Sequence { start, increment, least, most, cycles, cache, of, ..old })
}

/// Returns the bounds of the numbers of a type.
fn bounds(of: Type) -> Option<(i64, i64)> {
    match of {
        Type::Int2 => Some((i16::MIN.into(), i16::MAX.into())),
        Type::Int4 => Some((i32::MIN.into(), i32::MAX.into())),
        Type::Int8 => Some((i64::MIN, i64::MAX)),
        _ => None,
    }
}

/// Returns the table and the column that OWNED BY names; `None` for NONE.
pub(crate) fn owner_of(options: &[ast::SequenceOptions]) -> Result<Option<Option<(String, String)>>> {
    let Some(ast::SequenceOptions::OwnedBy(owner)) =
        options.iter().find(|option| matches!(option, ast::SequenceOptions::OwnedBy(_)))
    else {
        return Ok(None);
    };
    let Some(owner) = owner else { return Ok(Some(None)) };
    let mut table = owner.clone();
    let column = table.0.pop().and_then(|part| part.as_ident().map(folded));
    match column {
        Some(column) if !table.0.is_empty() => Ok(Some(Some((relation(&table)?, column)))),
        _ => {
            let message = "invalid OWNED BY option";
            let hint = "Specify OWNED BY table.column or OWNED BY NONE.";
            Err(SqlError::new(code::SYNTAX_ERROR, message).with_hint(hint))
        }
    }
}

/// Runs ALTER SEQUENCE.
pub(crate) async fn alter_sequence(define: &mut Definer<'_, '_>, alter: &AlterSequence) -> Result<()> {
    let name = relation(&alter.name)?;
    let Some(sequence) = define.catalog.sequence(define.run.by, &name).await? else {
        return define.skip(alter.if_exists, undefined(&name));
    };
    define.catalog.place().check_owner(&sequence.owner, "sequence", &sequence.name)?;
    let place = sequence.relation();
    if let Some(owner) = &alter.owner {
        let owner = folded(owner);
        let new = Sequence { owner, ..(*sequence).clone() };
        return define.put_sequence(&place, &new).await;
    }
    if let Some(new) = &alter.rename {
        return define.rename_sequence(&sequence, folded(new)).await;
    }
    if !alter.options.is_empty() || alter.restart.is_some() {
        let mut new = changed((*sequence).clone(), &alter.options, false)?;
        new.id = define.run.by.store().fresh_id().await?;
        let restart = alter.restart.map(|number| number.unwrap_or(new.start));
        if let Some(number) = restart.filter(|number| !(new.least..=new.most).contains(number)) {
            let (word, bound, than) = match number < new.least {
                true => ("MINVALUE", new.least, "less"),
                false => ("MAXVALUE", new.most, "greater"),
            };
            fail!(INVALID_PARAMETER_VALUE, "RESTART value ({number}) cannot be {than} than {word} ({bound})");
        }
        let is_only_owner =
            alter.options.iter().all(|option| matches!(option, ast::SequenceOptions::OwnedBy(_)));
        if restart.is_some() || !is_only_owner {
            sequence.replace(&new, restart, define.run.by).await?;
            define.run.context.sequences.made.borrow_mut().insert(new.id);
            define.put_sequence(&place, &new).await?;
        }
    }
    define.own(&place, &alter.options).await
}

/// Removes a sequence, unless a column needs it.
pub(super) async fn drop_sequence(
    define: &mut Definer<'_, '_>,
    name: &RelationName,
    cascade: bool,
) -> Result<()> {
    let users = define.catalog.users_of_sequence(define.run.by, name).await?;
    let shown = |(table, column): &(RelationName, String)| {
        format!("default value for column {column} of table {}", table.name)
    };
    let object = format!("sequence {}", name.name);
    define.release(&object, &object, users.iter().map(shown).collect(), &[], cascade).await?;
    for (table, column) in users {
        let table = define.table(&table).await?;
        let at = table.column(&column)?;
        let without_default = |new: &mut Table| {
            new.columns[at].default = None;
            new.columns[at].sequences.clear();
        };
        define.edit(&table, without_default).await?;
    }
    define.disown(name).await?;
    define.catalog.change_entry(define.run.by, name, None).await
}

impl Definer<'_, '_> {
    async fn put_sequence(&mut self, name: &RelationName, new: &Sequence) -> Result<()> {
        let entry = Entry::Sequence(new.clone());
        self.catalog.change_entry(self.run.by, name, Some(&entry)).await
    }

    /// Lets a sequence begin again, at its start or at a number.
    pub(super) async fn restart(&mut self, name: &RelationName, number: Option<i64>) -> Result<()> {
        let Some(sequence) = self.catalog.sequence(self.run.by, &name.qualified()).await? else {
            return Ok(());
        };
        let mut new = (*sequence).clone();
        new.id = self.run.by.store().fresh_id().await?;
        sequence.replace(&new, Some(number.unwrap_or(new.start)), self.run.by).await?;
        self.run.context.sequences.made.borrow_mut().insert(new.id);
        self.put_sequence(name, &new).await
    }

    /// Lets a sequence belong to no column.
    async fn disown(&mut self, name: &RelationName) -> Result<()> {
        let key = Some(name.key());
        for table in self.catalog.tables(self.run.by).await? {
            let mut new = table.clone();
            let columns = new.columns.iter_mut().filter(|column| column.own_sequence == key);
            columns.for_each(|column| column.own_sequence = None);
            if new != table {
                self.change(Some(&table), Some(&new)).await?;
            }
        }
        Ok(())
    }

    /// Lets a sequence belong to the column that OWNED BY names.
    async fn own(&mut self, name: &RelationName, options: &[ast::SequenceOptions]) -> Result<()> {
        let Some(owner) = owner_of(options)? else { return Ok(()) };
        self.disown(name).await?;
        let Some((table, column)) = owner else { return Ok(()) };
        let table = self.owned(&table).await?;
        if table.schema != name.schema {
            fail!(NOT_IN_STATE, "sequence must be in same schema as table it is linked to");
        }
        let at = table.column(&column)?;
        self.edit(&table, |new| new.columns[at].own_sequence = Some(name.key())).await
    }

    /// Gives the sequences that belong to the columns of a table to another role.
    pub(super) async fn own_sequences_to(&mut self, table: &Table, owner: &str) -> Result<()> {
        let keys: Vec<_> = table.columns.iter().filter_map(|column| column.own_sequence.clone()).collect();
        let all = self.catalog.relations(self.run.by).await?.sequences;
        for mut sequence in all.into_iter().filter(|sequence| keys.contains(&sequence.relation().key())) {
            change_owner(&mut sequence.owner, &mut sequence.grants, owner);
            self.put_sequence(&sequence.relation(), &sequence).await?;
        }
        Ok(())
    }

    /// Renames a sequence. Columns that draw from it name it as it is then.
    pub(super) async fn rename_sequence(&mut self, sequence: &Sequence, new: String) -> Result<()> {
        let (old, new) = (sequence.relation(), RelationName::new(&sequence.schema, new));
        if self.has(&new).await? {
            return Err(duplicate(&new.name));
        }
        let changed = Sequence { name: new.name.clone(), ..sequence.clone() };
        self.catalog.change_entry(self.run.by, &old, None).await?;
        self.put_sequence(&new, &changed).await?;
        let tables = self.catalog.tables(self.run.by).await?;
        for table in tables {
            let mut renamed = table.clone();
            for column in &mut renamed.columns {
                if column.own_sequence == Some(old.key()) {
                    column.own_sequence = Some(new.key());
                }
                let Some(at) = column.sequences.iter().position(|name| *name == old.key()) else { continue };
                column.sequences[at] = new.key();
                let literal = |name: &RelationName| name.quoted().replace('\'', "''");
                let mut forms =
                    vec![format!("'{}'", literal(&old)), format!("'{}'", old.name.replace('\'', "''"))];
                forms.dedup();
                let text = column.default.take().unwrap_or_default();
                let places: usize = forms.iter().map(|form| text.matches(form.as_str()).count()).sum();
                refuse(places != 1, "RENAME of a sequence that a default names in this way")?;
                let quoted = format!("'{}'", literal(&new));
                column.default = Some(forms.iter().fold(text, |text, form| text.replace(form, &quoted)));
            }
            if renamed != table {
                self.change(Some(&table), Some(&renamed)).await?;
            }
        }
        Ok(())
    }
}
