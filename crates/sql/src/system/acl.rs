//! Rights as PostgreSQL shows them: texts like `owner=arwdDxt/owner`.

use crate::{
    catalog::{Grant, Privilege},
    functions::names::quoted_name,
    types::Value,
};

/// The letters of rights, in the order in which they are shown.
const LETTERS: &[(Privilege, char)] = &[
    (Privilege::Insert, 'a'),
    (Privilege::Select, 'r'),
    (Privilege::Update, 'w'),
    (Privilege::Delete, 'd'),
    (Privilege::Truncate, 'D'),
    (Privilege::References, 'x'),
    (Privilege::Trigger, 't'),
    (Privilege::Usage, 'U'),
    (Privilege::Create, 'C'),
    (Privilege::Temporary, 'T'),
    (Privilege::Connect, 'c'),
];

/// The rights to tables and views.
pub(super) const OF_TABLES: [&str; 7] =
    ["INSERT", "SELECT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"];

/// Returns the name of a right to tables and views.
pub(super) fn word(privilege: Privilege) -> Option<&'static str> {
    let at = LETTERS.iter().position(|(known, _)| *known == privilege)?;
    OF_TABLES.get(at).copied()
}

/// Returns the rights that all roles and the owner of a kind of object have at first; the kind is a
/// letter as in `acldefault`.
fn first(kind: &str) -> Option<(&'static str, &'static str)> {
    Some(match kind {
        "c" => ("", ""),
        "r" => ("", "arwdDxt"),
        "s" => ("", "rwU"),
        "d" => ("Tc", "CTc"),
        "n" => ("", "UC"),
        "t" => ("", "C"),
        "L" => ("", "rw"),
        "f" => ("X", "X"),
        "l" | "T" => ("U", "U"),
        "F" | "S" => ("", "U"),
        "p" => ("", "sA"),
        _ => return None,
    })
}

/// Returns the rights to an object of a kind that no statement has changed.
pub(super) fn default(owner: &str, kind: &str) -> Option<Vec<String>> {
    let (all, own) = first(kind)?;
    let owner = quoted_name(owner);
    let of_all = (!all.is_empty()).then(|| format!("={all}/{owner}"));
    let of_owner = (!own.is_empty()).then(|| format!("{owner}={own}/{owner}"));
    Some(of_all.into_iter().chain(of_owner).collect())
}

/// Returns the rights to an object: NULL if no statement has given any.
pub(super) fn of(owner: &str, kind: &str, grants: &[Grant]) -> Value {
    if grants.is_empty() {
        return Value::Null;
    }
    let mut all = default(owner, kind).unwrap_or_default();
    let mut shown: Vec<(&Option<String>, &String)> = Vec::new();
    for grant in grants {
        let pair = (&grant.role, &grant.by);
        if shown.contains(&pair) {
            continue;
        }
        shown.push(pair);
        let given = |wanted: Privilege| {
            grants.iter().find(|one| (&one.role, &one.by) == pair && one.privilege == wanted)
        };
        let mut letters = String::new();
        for (privilege, letter) in LETTERS {
            if let Some(given) = given(*privilege) {
                letters.push(*letter);
                letters.push_str(if given.can_grant { "*" } else { "" });
            }
        }
        let role = grant.role.as_deref().map(quoted_name).unwrap_or_default();
        all.push(format!("{role}={letters}/{}", quoted_name(&grant.by)));
    }
    super::rows::list(all, 1)
}
