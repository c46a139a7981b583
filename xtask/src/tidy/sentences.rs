//! Documentation of functions and types begins with a sentence that can be read alone.
//!
//! The rule checks the first paragraph of `///` above `fn`, `struct`, `enum`, `trait`, `type` and
//! `union`: a capital letter or a code span first, a full stop or colon last, three words at least,
//! and no question word in front. Fields and variants are free.

use super::{Finding, Tree, source::Source};

/// Words before the keyword of an item.
const MODIFIERS: [&str; 8] = ["pub", "const", "async", "unsafe", "extern", "default", "crate", "\"C\""];

/// Keywords of the items that are checked.
const ITEMS: [&str; 6] = ["fn", "struct", "enum", "trait", "type", "union"];

/// First words that make a fragment: the subject is missing, as it is with Nobody or Somebody.
const FRAGMENT_OPENERS: [&str; 11] =
    ["Who", "Whose", "Whom", "Whoever", "What", "Whatever", "Where", "When", "Why", "How", "Of"];

/// Prepositions that make a fragment when `which`, `what` or `whom` follows.
const PREPOSITIONS: [&str; 10] = ["At", "By", "For", "From", "In", "On", "To", "Under", "Until", "With"];

/// Checks every Rust file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources().iter().flat_map(|(path, source)| file(path, source)).collect()
}

fn file(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut index = 0;
    while index < source.comments.len() {
        let first = index;
        let mut paragraph: Vec<&str> = Vec::new();
        let mut is_over = false;
        while let Some(line) = source.comments.get(index).and_then(|line| doc_line(line)) {
            is_over |= line.is_empty() || line.starts_with(['#', '|']) || line.starts_with("```");
            if !is_over {
                paragraph.push(line);
            }
            index += 1;
        }
        if index == first {
            index += 1;
        } else if let Some(item) = item_below(&source.code[index..]) {
            let wrong = wrong_with(&paragraph.join(" "));
            findings.extend(wrong.map(|what| Finding::new(path, first + 1, format!("`{item}`: {what}"))));
        }
    }
    findings
}

/// The text of a line of `///`.
fn doc_line(comment: &str) -> Option<&str> {
    let text = comment.trim().strip_prefix("///")?;
    (!text.starts_with('/')).then(|| text.trim())
}

/// Returns the keyword and name of the item that follows, past its attributes.
fn item_below(code: &[String]) -> Option<String> {
    let mut depth = 0;
    for line in code {
        let line = line.trim();
        let opens = line.starts_with("#[") || depth > 0;
        if opens || line.is_empty() {
            depth += line.matches('[').count() as i32 - line.matches(']').count() as i32;
            continue;
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '"';
        let mut words = line.split(|c| !is_name(c)).filter(|word| !word.is_empty());
        let keyword = words.find(|word| !MODIFIERS.contains(word) && *word != "super" && *word != "\"")?;
        let starts = line.find(keyword)? + keyword.len();
        let is_item = ITEMS.contains(&keyword) && line[starts..].starts_with(' ');
        return is_item.then(|| format!("{keyword} {}", words.next().unwrap_or_default()));
    }
    None
}

/// Says why `paragraph` is not a sentence.
fn wrong_with(paragraph: &str) -> Option<String> {
    if paragraph.is_empty() {
        return Some("its documentation must begin with a sentence".into());
    }
    let mut words = paragraph.split_whitespace();
    let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let asks = matches!(second, "which" | "what" | "whom" | "whose");
    if !first.starts_with(|c: char| c.is_uppercase() || c.is_numeric() || "`[<*\"'(".contains(c)) {
        return Some(format!("its documentation begins with `{first}`, not with a capital letter"));
    }
    let opener = first.trim_end_matches('.');
    let is_fragment = FRAGMENT_OPENERS.contains(&opener) || opener.ends_with("body");
    if is_fragment || (PREPOSITIONS.contains(&first) && asks) {
        return Some(format!("`{first} {second} ...` is a fragment: begin with a verb or a noun phrase"));
    }
    if !paragraph.trim_end_matches(['*', '_', ')', '"']).ends_with(['.', ':', '!', '?', ';']) {
        return Some("the first paragraph of its documentation has no full stop at its end".into());
    }
    if paragraph.split_whitespace().count() < 3 {
        return Some(format!("`{paragraph}` is a fragment: write a sentence that can be read alone"));
    }
    (paragraph == "See the [module](self).").then(|| "say what it is, not only where to read".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::finds_in;

    #[track_caller]
    fn docs(text: &str, expect: &[(usize, &str)]) {
        finds_in(check, "a.rs", text, expect);
    }

    #[test]
    fn sentences_pass() {
        docs("/// Sends the message to its peer.\nfn f() {}", &[]);
        docs("/// A set of nodes, as in:\n/// ```text\n/// x\n/// ```\npub struct Nodes;", &[]);
        docs(
            "/// `a` and `b`\n/// are added.\n///\n/// more\n#[derive(\n    Debug,\n)]\npub(crate) enum E {}",
            &[],
        );
        docs("/// Whether the lease holds.\npub const fn f() {}", &[]);
        docs("/// Runs (in turn).\nfn f() {}", &[]);
    }

    #[test]
    fn fragments_are_found() {
        docs("/// Who waits for a lock.\nstruct A;", &[(1, "`struct A`: `Who waits")]);
        docs("/// Of what.\nfn f() {}", &[(1, "`fn f`")]);
        docs("/// Nobody waits for it.\nfn f() {}", &[(1, "`Nobody waits ...`")]);
        docs("/// In which mode it is held.\ntype A = u8;", &[(1, "`In which ...`")]);
        docs("/// A connection.\npub struct A;", &[(1, "`A connection.` is a fragment")]);
        docs("/// sends the message away.\npub async fn f() {}", &[(1, "capital letter")]);
        docs("/// Sends the message\n/// away\nunsafe fn f() {}", &[(1, "no full stop")]);
        docs("a;\n/// See the [module](self).\ntrait A {}", &[(2, "say what it is")]);
        docs("/// # Errors\n/// It fails.\nfn f() {}", &[(1, "must begin with a sentence")]);
    }

    #[test]
    fn fields_and_variants_are_free() {
        docs("struct A {\n    /// By node\n    nodes: u8,\n}\nenum B {\n    /// Gone\n    Gone,\n}", &[]);
        docs("let a = \"\n/// Who\nfn f()\";\n// Who\nfn f() {}", &[]);
    }
}
