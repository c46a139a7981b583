//! Names and literals in the text of statements.

/// The words that are no names without quotes (`pg_get_keywords`, all categories but `U`).
const WORDS: &str = " all analyse analyze and any array as asc asymmetric authorization between bigint \
    binary bit boolean both case cast char character check coalesce collate collation column \
    concurrently constraint create cross current_catalog current_date current_role current_schema \
    current_time current_timestamp current_user dec decimal default deferrable desc distinct do else end \
    except exists extract false fetch float for foreign freeze from full grant greatest group grouping \
    having ilike in initially inner inout int integer intersect interval into is isnull join lateral \
    leading least left like limit localtime localtimestamp national natural nchar none normalize not \
    notnull null nullif numeric offset on only or order out outer overlaps overlay placing position \
    precision primary real references returning right row select session_user setof similar smallint some \
    substring symmetric table tablesample then time timestamp to trailing treat trim true union unique \
    user using values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement \
    xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable ";

/// Returns a name as a statement gives it: in quotes if it needs them.
pub(crate) fn quoted_name(name: &str) -> String {
    let is_plain = |char: char| matches!(char, 'a'..='z' | '0'..='9' | '_');
    let is_word = name.starts_with(|char: char| char.is_ascii_lowercase() || char == '_')
        && name.chars().all(is_plain)
        && !WORDS.contains(&format!(" {name} "));
    if is_word { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Returns a text as a literal of a statement.
pub(crate) fn quoted_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}
